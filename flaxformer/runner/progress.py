"""Progress of a study: a bar in a terminal, a line at an interval in a file or pipe."""

import dataclasses
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flaxformer.runner.execute import Compiled, Compiling, Finished, Message, Progressed, StudyEvent
from flaxformer.system.wording import count_of, duration

SECONDS_BETWEEN_LINES = 15


@dataclasses.dataclass
class Totals:
    """Work that was done so far, of `runs` and `steps` in all; time counts from the first compiled program on."""

    runs: int
    steps: int
    done: int = 0
    failed: int = 0
    steps_done: int = 0
    tokens: int = 0
    began: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the first program was compiled."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def rate(self) -> str:
        """Tokens per second."""
        return f"{self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"

    def line(self) -> str:
        """Progress as a line of a log."""
        share = self.steps_done / self.steps if self.steps else 1.0
        left = duration(self.seconds * (1 - share) / max(share, 1e-9))
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.runs} runs{failed}, {100 * share:.0f} % of the steps, {self.rate}, {left} left"


def follow(events: Iterable[StudyEvent], console: Console, runs: int, steps: int) -> int:
    """Print what is compiled, runs, steps, tokens per second and time left; returns the number of failed runs."""
    columns = [TextColumn("{task.fields[runs]}"), BarColumn(bar_width=None)]
    columns += [TextColumn("{task.percentage:.0f} %"), TextColumn("{task.fields[rate]}")]
    totals, printed = Totals(runs, steps), time.monotonic()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, expand=True
    ) as progress:
        bar = progress.add_task("", total=steps, runs=f"0/{runs} runs", rate="compiling")
        for event in events:
            match event:
                case Compiling(group, number, programs):
                    text = Text(f"compiling {group} ({number} of {programs})", style="dim")
                    progress.console.print(text, overflow="fold")
                case Compiled():
                    totals.began = totals.began or time.monotonic()
                case Progressed(_, trials, taken, read):
                    totals.tokens += read
                    totals.steps_done += trials * taken
                    progress.update(bar, advance=trials * taken, rate=totals.rate)
                case Message(text):
                    progress.console.print(Text(text, style="yellow"))
                case Finished(_, row):
                    totals.done += 1
                    totals.failed += row["status"] == "failed"
                    progress.update(bar, runs=f"{totals.done}/{runs} runs")
            is_due = time.monotonic() - printed > SECONDS_BETWEEN_LINES and totals.steps_done > 0
            is_last = isinstance(event, Finished) and totals.done == runs
            if not console.is_terminal and (is_due or is_last):
                printed = time.monotonic()
                console.print(totals.line(), highlight=False)
    if totals.done:
        failed = f", {totals.failed} failed" if totals.failed else ""
        console.print(f"{count_of(totals.done, 'run')} in {duration(totals.seconds)}{failed}", highlight=False)
    return totals.failed
