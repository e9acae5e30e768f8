"""Progress of training on a console: a bar in a terminal, a line at an interval in a file or pipe."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flaxformer.report.numbers import number
from flaxformer.report.profile_table import profile_lines, profile_table
from flaxformer.report.width import fit_width
from flaxformer.runner.events import (
    Compiled,
    Compiling,
    Diverged,
    Evaluated,
    Event,
    Finished,
    FirstLoss,
    Message,
    Profiled,
    Progressed,
    Sampled,
    Started,
)
from flaxformer.system.wording import count_of, duration, printable, with_prefix

SECONDS_BETWEEN_LINES = 15


@dataclasses.dataclass
class Totals:
    """Work of a study that was done so far, of `runs` and `steps` in all.

    Time counts from the first compiled program on.
    """

    runs: int
    steps: int
    done: int = 0
    failed: int = 0
    steps_done: int = 0
    tokens: int = 0
    began: float | None = None

    def add(self, event: Event) -> None:
        """Count what an event says."""
        match event:
            case Compiled():
                self.began = self.began or time.monotonic()
            case Progressed():
                self.tokens += event.tokens
                self.steps_done += event.trials * event.steps
            case Finished(_, row):
                self.done += 1
                self.failed += row["status"] == "failed"

    @property
    def seconds(self) -> float:
        """Seconds since the first program was compiled."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def rate(self) -> str:
        """Tokens per second."""
        return f"{self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"

    @property
    def text(self) -> str:
        """Text beside the bar."""
        return f"{self.done}/{self.runs} runs  {self.rate if self.steps_done else 'compiling'}"

    def line(self) -> str:
        """Progress as a line of a log."""
        share = self.steps_done / self.steps if self.steps else 1.0
        left = duration(self.seconds * (1 - share) / max(share, 1e-9))
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.runs} runs{failed}, {100 * share:.0f} % of the steps, {self.rate}, {left} left"


@dataclasses.dataclass(kw_only=True)
class RunTotals(Totals):
    """Work of a single run that was done so far.

    Args:
      describe: returns words on a number of steps per second, such as the FLOP/s.
    """

    describe: Callable[[float], str]
    last: Progressed | None = None

    def add(self, event: Event) -> None:
        """Count what an event says; a run that diverges has failed."""
        match event:
            case Started(step):
                self.steps_done = step
            case Progressed(step=step):
                self.last, self.steps_done = event, step
            case Diverged():
                self.failed = 1

    @property
    def text(self) -> str:
        """Loss, and tokens per second of the last steps."""
        if self.last is None:
            return "compiling"
        tokens_per_second = self.last.tokens / max(self.last.seconds, 1e-9)
        return f"loss {self.last.curves['loss'][-1]:.4f}  {tokens_per_second:,.0f} tokens/s"

    def line(self) -> str:
        """Progress as a line of a log."""
        assert self.last is not None
        steps_per_second = self.last.steps / max(self.last.seconds, 1e-9)
        left = duration((self.steps - self.steps_done) / steps_per_second)
        return f"step {self.steps_done:,}: {self.text}  {self.describe(steps_per_second)}, {left} left"


def follow(events: Iterable[Event], console: Console, totals: Totals) -> int:
    """Print events, steps, tokens per second and time left; returns the number of failed runs."""
    columns = [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), BarColumn(bar_width=None)]
    columns += [TextColumn("{task.percentage:.0f} %"), TextColumn("{task.fields[text]}"), TimeRemainingColumn()]
    printed = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as progress:
        bar = progress.add_task("", total=totals.steps, text=totals.text)
        for event in events:
            totals.add(event)
            progress.update(bar, completed=totals.steps_done, text=totals.text)
            if event != Started(totals.steps):  # of a finished run, there is nothing to compile
                show(event, progress.console)
            has_steps = isinstance(event, Progressed) and totals.steps_done > 0
            is_due = has_steps and time.monotonic() - printed > SECONDS_BETWEEN_LINES
            is_last = isinstance(event, Finished) and totals.done == totals.runs
            if not console.is_terminal and (is_due or is_last):
                printed = time.monotonic()
                console.print(totals.line())
    if totals.done:
        failed = f", {totals.failed} failed" if totals.failed else ""
        console.print(f"{count_of(totals.done, 'run')} in {duration(totals.seconds)}{failed}")
    return totals.failed


def show(event: Event, console: Console) -> None:
    """Print an event, unless it only moves the bar."""
    match event:
        case Message(text):
            console.print(Text(text, style="yellow"))
        case Started(step):
            begins = f"resuming after step {step:,}" if step else "starting"
            console.print(f"{begins}; compiling", style="dim")
        case Compiling(group, k, programs):
            console.print(Text(f"compiling {group} ({k} of {programs})", style="dim"), overflow="fold")
        case Compiled(_, _, seconds, int(used)):
            memory = f"; the largest program needs {with_prefix(used, 'B')} on a device" if used else ""
            console.print(f"compiled in {duration(seconds)}{memory}", style="dim")
        case FirstLoss(loss):
            console.print(Text.assemble((f"step {1:>7,}  ", "dim"), f"training loss {number(loss)}"))
        case Evaluated(step, metrics):
            line = "  ".join(f"{name.replace('_', ' ')} {number(metrics[name])}" for name in _in_order(metrics))
            console.print(Text.assemble((f"step {step:>7,}  ", "dim"), line))
        case Sampled(_, prompt, text):
            sample = Text.assemble((printable(prompt), "dim"), printable(text))
            console.print(Padding(sample, (0, 0, 0, 14), expand=False))
        case Profiled():
            for line in profile_lines(event):
                console.print(line)
            console.print(fit_width(profile_table(event), console.width))
            show_files(event.folder, console)
        case Diverged(step):
            console.print(
                f"The loss or a gradient was not finite at step {step:,}; the weights are those before that "
                "step. flaxformer.diagnostics.first_nonfinite finds the first operation that was not finite.",
                style="red",
            )


def show_files(folder: Path, console: Console) -> None:
    """Print how a trace is opened."""
    for file in sorted(folder.glob("*.trace.json.gz")):
        console.print(f"Trace: {file}, for ui.perfetto.dev", soft_wrap=True)
    console.print(f"xprof {folder.parents[2]} shows it too", soft_wrap=True)


def _in_order(metrics: Iterable[str]) -> list[str]:
    """Metrics of an evaluation: the loss of the task, the losses of named evaluations, and all others."""
    return sorted(metrics, key=lambda name: (name not in ("validation_loss", "test_loss"), not name.endswith("_loss")))
