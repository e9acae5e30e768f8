"""Showing a study's progress: a bar in a terminal, a line now and then in a log."""

import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flaxformer.runner.execute import Compiled, Finished, Message, Progressed, StudyEvent

SECONDS_BETWEEN_LINES = 15


def follow(events: Iterable[StudyEvent], console: Console, runs: int, steps: int) -> int:
    """Show runs, steps, tokens per second (since the first program was compiled) and time left.

    Returns:
      the number of runs that failed.
    """
    columns = [TextColumn("{task.fields[runs]}"), BarColumn()]
    columns += [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), TextColumn("{task.fields[rate]}")]
    began = told = time.monotonic()
    compiled = tokens = done = failed = 0
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=steps, runs=f"0/{runs} runs", rate="compiling")
        for event in events:
            now = time.monotonic()
            match event:
                case Compiled(group, device, seconds):
                    began = began if compiled else now
                    compiled += 1
                    message = f"compiled {group} for {device} in {seconds:.1f} s"
                    progress.console.print(message, style="dim", highlight=False)
                case Progressed(_, trials, taken, read):
                    tokens += read
                    progress.update(
                        bar, advance=trials * taken, rate=f"{tokens / max(now - began, 1e-9):,.0f} tokens/s"
                    )
                case Message(text):
                    progress.console.print(Text(text, style="yellow"), highlight=False, soft_wrap=True)
                case Finished(_, row):
                    done += 1
                    failed += row["status"] == "failed"
                    progress.update(bar, runs=f"{done}/{runs} runs")
                    if not console.is_terminal and (now - told > SECONDS_BETWEEN_LINES or done == runs):
                        told, left = now, (now - began) / done * max(runs - done, 0)
                        rate = tokens / max(now - began, 1e-9)
                        console.print(f"{done}/{runs} runs, {rate:,.0f} tokens/s, {left:.0f} s left", highlight=False)
    return failed
