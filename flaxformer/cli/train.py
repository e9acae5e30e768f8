"""The command `flaxformer train FILE`."""

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flaxformer.checkpoint import stopping
from flaxformer.cli.options import FAILED, option
from flaxformer.cli.study import weights_table
from flaxformer.jobs import Advanced, Diverged, Evaluated, Event, Job, Saved, Started, train
from flaxformer.model.transformer import Layout
from flaxformer.struct import override
from flaxformer.study.load import load
from flaxformer.study.numbers import duration, number
from flaxformer.study.plan import Cost, cost_of_run
from flaxformer.training import Run

SECONDS_BETWEEN_LINES = 15


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one run; the same command again goes on after its newest checkpoint."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="a Python file that defines `run`")]
    overrides: Annotated[
        tuple[str, ...],
        option("PATH=VALUE …", "none; --set itself may be left out", "change fields, as in model.layers=2", name="set"),
    ] = ()
    output: Annotated[Path | None, option("DIR", "runs/FILE", "folder of the run")] = None
    save_every: Annotated[int | None, option("N", "as evaluations", "steps between two checkpoints")] = None
    keep_last: Annotated[int, option("N", "2", "newest checkpoints to keep")] = 2
    keep_best: Annotated[int, option("N", "1", "best checkpoints to keep")] = 1
    chunk_steps: Annotated[int, option("N", "50", "steps between two looks at progress and signals")] = 50
    layout: Annotated[Layout, option("KIND", "auto, by depth", "layers auto, unrolled or scanned")] = "auto"
    plan: Annotated[bool, tyro.conf.arg(help="show the plan, and train nothing")] = False

    def __call__(self, console: Console) -> int:
        run = override(load(self.file, "run", Run), self.overrides)
        output = self.output or Path("runs") / self.file.stem
        names = [field.name for field in dataclasses.fields(Job) if field.name != "output"]
        job = Job(output=output, **{name: getattr(self, name) for name in names})
        price = cost_of_run(run)
        show_plan(console, run, price)
        if self.plan:
            return 0
        with stopping() as stop:
            diverged = follow(train(run, job, stop), console, run, price)
            if stop.by is not None:
                console.print(f"Incomplete: {stop.by.name} came; the same command goes on. {output}", highlight=False)
        return FAILED if diverged else 0


def show_plan(console: Console, run: Run, price: Cost) -> None:
    """Parameters by weight, operations, memory, steps, tokens, and the time that they will take."""
    console.print(weights_table(run.model))
    steps, tokens = run.training.steps, run.tokens_per_step
    console.print(
        f"{price.parameters:,} parameters; {price.flops_per_step / tokens / 1e6:,.2f} MFLOP a token; "
        f"{price.bytes_per_member / 1e6:,.0f} MB a step",
        highlight=False,
    )
    seconds = price.seconds_per_step * steps
    devices = f"one of {jax.local_device_count()} {jax.devices()[0].device_kind} devices"
    console.print(
        f"{steps:,} steps of {tokens:,} tokens, {steps * tokens:,} in all: about {duration(seconds)} on {devices}",
        highlight=False,
    )


def follow(events: Iterable[Event], console: Console, run: Run, price: Cost) -> bool:
    """Show steps, loss, tokens per second, FLOP/s and time left; returns whether the run diverged."""
    columns = [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), BarColumn()]
    columns += [TextColumn("{task.fields[now]}"), TimeRemainingColumn()]
    told, diverged = time.monotonic(), False
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=run.training.steps, now="compiling")
        for event in events:
            match event:
                case Started(step):
                    progress.update(bar, completed=step)
                    if step:
                        progress.console.print(f"going on after step {step:,}", highlight=False)
                case Advanced(step, loss, steps, seconds):
                    rate = steps / max(seconds, 1e-9)
                    tokens, flops = rate * run.tokens_per_step, rate * price.flops_per_step
                    now = f"loss {loss:.4f}  {tokens:,.0f} tokens/s  {flops / 1e9:,.1f} GFLOP/s"
                    progress.update(bar, completed=step, now=now)
                    if not console.is_terminal and time.monotonic() - told > SECONDS_BETWEEN_LINES:
                        told = time.monotonic()
                        left = duration((run.training.steps - step) / rate)
                        console.print(f"step {step:,}: {now}, {left} left", highlight=False)
                case Evaluated(step, metrics):
                    loss_first = sorted(metrics.items(), key=lambda item: item[0] != "validation_loss")
                    line = "  ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in loss_first)
                    progress.console.print(Text.assemble((f"step {step:>7,}  ", "dim"), line))
                case Saved():
                    pass
                case Diverged(step):
                    diverged = True
                    progress.console.print(
                        f"The loss or a gradient was not finite at step {step:,}; nothing was changed from there on. "
                        "flaxformer.diagnostics.first_nonfinite tells where it began.",
                        style="red",
                    )
    return diverged
