"""The command `flaxformer train FILE`."""

import dataclasses
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path

import jax
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flaxformer import model
from flaxformer.checkpoint import stop_on_signals
from flaxformer.cli.arguments import Train
from flaxformer.cli.arguments.options import FAILED, INTERRUPTED
from flaxformer.cli.remat import remat_table
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.overrides import override
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.jobs import (
    Diverged,
    Evaluated,
    FinalScores,
    Job,
    JobEvent,
    ProgramsCompiled,
    Sampled,
    Saved,
    Started,
    StepsTaken,
    check,
    train,
)
from flaxformer.jobs.peak import model_flops, peak
from flaxformer.report.numbers import number
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.study.load import load
from flaxformer.study.program_cost import Cost, cost_of_run, slow_decoding
from flaxformer.system.wording import count_of, duration, printable, with_prefix
from flaxformer.training import Run
from flaxformer.training.device_group import default_devices
from flaxformer.training.memory import check_memory, excess, parameters
from flaxformer.training.micro_batches import micro_batches

SECONDS_BETWEEN_LINES = 15


def main(arguments: Train, console: Console) -> int:
    """Train the run, or resume it; or show its cost alone."""
    distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    console = console if distributed.is_coordinator() else Console(quiet=True)
    run = override(load(arguments.file, "run", Run), arguments.overrides)
    output = arguments.output or Path("runs") / arguments.file.stem
    own = ("output", "devices")
    settings = {f.name: getattr(arguments, f.name) for f in dataclasses.fields(Job) if f.name not in own}
    devices = default_devices(run) if arguments.mesh is None else parse_devices(arguments.mesh)
    job = Job(output=output, devices=devices, **settings)
    if not arguments.plan:
        check_memory(run)
    elif too_much := excess(run):
        console.print(f"{count_of(parameters(run.model), 'parameter')}; the run {too_much}", highlight=False)
        return 0
    distributed.run_on_coordinator(lambda: check(run, job))
    price = Price.of(run, devices)
    price.show(console, run)
    if arguments.plan:
        console.print("compiling and timing one step", style="dim")
        price.show_measured(console, run, cost_of_run(run))
        if arguments.remat:
            console.print()
            console.print(fit_width(remat_table(run), console.width))
        return 0
    with stop_on_signals() as stop:
        diverged = follow(train(run, job, stop), console, run, price)
    if stop.by is not None:
        console.print(
            f"Incomplete: stopped by {stop.by.name}; the same command resumes from the newest checkpoint in {output}.",
            highlight=False,
        )
        return INTERRUPTED
    return FAILED if diverged else 0


@dataclasses.dataclass(frozen=True)
class Price:
    """Work of a run, and the devices that do it."""

    flops: int
    """FLOPs of the matrix products of one step, 3 × those of the forward pass."""
    device: str
    devices: Devices
    peak: float | None
    """Published FLOP/s of all devices together; None where there is no such number."""

    @classmethod
    def of(cls, run: Run, devices: Devices | None = None) -> "Price":
        """Return the price of a run on these devices; nothing is compiled."""
        kind, devices = jax.devices()[0].device_kind, devices or Devices()
        one = peak(kind, run.training.precision)
        return cls(model_flops(run), kind, devices, None if one is None else one * devices.count)

    def show(self, console: Console, run: Run) -> None:
        """Print the modules; then parameters, FLOPs, steps, tokens and devices."""
        console.print(fit_width(modules_table(run.model), console.width))
        console.print()
        steps, tokens, parts = run.training.steps, run.tokens_per_step, micro_batches(run)
        split = f", in {parts} micro-batches" if parts > 1 else ""
        peak_rate = "" if self.peak is None else f", with a peak of {self.peak / 1e12:,.0f} TFLOP/s"
        lines = (
            count_of(parameters(run.model), "parameter"),
            f"{with_prefix(self.flops / tokens, 'FLOP')} per token, "
            f"{with_prefix(self.flops, 'FLOP')} per step, in matrix products",
            f"{count_of(steps, 'step')} of {tokens:,} tokens{split}: {steps * tokens:,} tokens",
            f"on {self.devices.count} of {count_of(jax.device_count(), f'{self.device} device')}{peak_rate}",
            *slow_decoding([run.model]),
        )
        for line in lines:
            console.print(line, highlight=False)

    def show_measured(self, console: Console, run: Run, step: Cost) -> None:
        """Print the memory of a step on one device, and the time of the run."""
        is_shared = self.devices.count > 1
        seconds = step.seconds_per_step * run.training.steps / self.devices.count + step.compile_seconds
        memory = f"{with_prefix(step.bytes_per_member, 'B')} of memory per step{' on one device' * is_shared}"
        console.print(f"{memory}; {_about(seconds, is_shared)}, without evaluations", highlight=False)

    def describe(self, steps_per_second: float) -> str:
        """The FLOP/s of the model at a number of steps per second, and their share of the peak (MFU)."""
        flops = steps_per_second * self.flops
        share = "" if self.peak is None else f"  MFU {flops / self.peak:.1%}"
        return f"{with_prefix(flops, 'FLOP/s')}{share}"


def _about(seconds: float, is_shared: bool) -> str:
    """The time of a run; unknown if a step could not be timed."""
    return f"{'at least' if is_shared else 'about'} {duration(seconds)}" if math.isfinite(seconds) else "unknown time"


def modules_table(config: ModelConfig) -> Table:
    """The modules of a model with their weights and parameters; equal modules of several layers share a row."""
    counts: dict[str, int] = {}
    weights: dict[str, dict[str, None]] = {}
    for path, spec in params.table(model.specs(config)):
        module, _, name = re.sub(r"\bblocks/\d+/", "blocks/*/", path).rpartition("/")
        counts[module] = counts.get(module, 0) + math.prod(spec.shape)
        weights.setdefault(module, {})[f"{name} {'×'.join(map(str, spec.shape))}"] = None
    rows = [[module, ", ".join(weights[module]), f"{count:,}"] for module, count in counts.items()]
    return Table("", ["module", "weights", "parameters"], rows, 2)


def _in_order(metrics: Iterable[str]) -> list[str]:
    """Metrics of an evaluation: the loss of the task, the losses of named evaluations, and all others."""
    return sorted(metrics, key=lambda name: (name not in ("validation_loss", "test_loss"), not name.endswith("_loss")))


def follow(events: Iterable[JobEvent], console: Console, run: Run, price: Price) -> bool:
    """Print steps, loss, tokens per second, FLOP/s, MFU and time left; returns True if the run diverged."""
    columns = [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), BarColumn(bar_width=10)]
    columns += [TextColumn("{task.fields[now]}"), TimeRemainingColumn()]
    printed, diverged = time.monotonic(), False
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=run.training.steps, now="compiling")
        for event in events:
            match event:
                case Started(step):
                    progress.update(bar, completed=step)
                    begins = f"resuming after step {step:,}" if step else "starting"
                    progress.console.print(f"{begins}; compiling", style="dim", highlight=False)
                case ProgramsCompiled(seconds, used):
                    memory = f"; the largest program needs {with_prefix(used, 'B')} on a device" if used else ""
                    line = f"compiled in {duration(seconds)}{memory}"
                    progress.console.print(line, style="dim", highlight=False)
                case StepsTaken(step, loss, steps, seconds):
                    rate = steps / max(seconds, 1e-9)
                    now = f"loss {loss:.4f}  {rate * run.tokens_per_step:,.0f} tokens/s"
                    progress.update(bar, completed=step, now=now)
                    if not console.is_terminal and time.monotonic() - printed > SECONDS_BETWEEN_LINES:
                        printed = time.monotonic()
                        left = duration((run.training.steps - step) / rate)
                        line = f"step {step:,}: {now}  {price.describe(rate)}, {left} left"
                        console.print(line, highlight=False)
                case Evaluated(step, metrics) | FinalScores(step, metrics):
                    line = "  ".join(f"{name.replace('_', ' ')} {number(metrics[name])}" for name in _in_order(metrics))
                    progress.console.print(Text.assemble((f"step {step:>7,}  ", "dim"), line))
                case Sampled(_, prompt, text):
                    said = Text.assemble((printable(prompt), "dim"), printable(text))
                    progress.console.print(Padding(said, (0, 0, 0, 14), expand=False))
                case Saved():
                    pass
                case Diverged(step):
                    diverged = True
                    progress.console.print(
                        f"The loss or a gradient was not finite at step {step:,}; the weights are those before that "
                        "step. flaxformer.diagnostics.first_nonfinite finds the first operation that was not finite.",
                        style="red",
                    )
    return diverged
