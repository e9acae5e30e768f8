"""The command `flaxformer train FILE`."""

import dataclasses
import math
import re
from pathlib import Path

import jax
from rich.console import Console

from flaxformer import model
from flaxformer.checkpoint import Checkpoints, stop_on_signals
from flaxformer.cli.arguments import Train
from flaxformer.cli.arguments.options import FAILED, INTERRUPTED
from flaxformer.cli.live import live_page
from flaxformer.cli.remat import remat_table
from flaxformer.cli.show import show_data, show_job
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.overrides import override
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.jobs import Job, check, train
from flaxformer.jobs.peak import model_flops, peak_of
from flaxformer.jobs.progress import RunTotals, follow
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.study.load import load
from flaxformer.study.program_cost import Cost, cost_of_run, slow_decoding
from flaxformer.system.wording import count_of, duration, with_prefix
from flaxformer.training import Run
from flaxformer.training.device_group import default_devices
from flaxformer.training.memory import check_memory, excess, parameters
from flaxformer.training.micro_batches import micro_batches


def main(arguments: Train, console: Console) -> int:
    """Train the run, or resume it; or show its cost alone."""
    distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    console = console if distributed.is_coordinator() else Console(quiet=True)
    run = override(load(arguments.file, "run", Run), arguments.overrides)
    output = arguments.output or Path("runs") / arguments.file.stem
    excluded = ("output", "devices")
    settings = {f.name: getattr(arguments, f.name) for f in dataclasses.fields(Job) if f.name not in excluded}
    devices = default_devices(run) if arguments.mesh is None else parse_devices(arguments.mesh)
    job = Job(output=output, devices=devices, **settings)
    if not arguments.plan:
        check_memory(run)
    elif too_much := excess(run):
        console.print(f"{count_of(parameters(run.model), 'parameter')}; the run {too_much}")
        return 0
    distributed.run_on_coordinator(lambda: bool(check(run, job)))
    is_trained = not job.restart and max(Checkpoints(output).steps(), default=0) == run.training.steps
    if arguments.plan or not is_trained:
        Price.of(run, devices).show(console, run)
    if arguments.plan:
        console.print("compiling and timing one step", style="dim")
        Price.of(run, devices).show_measured(console, run, cost_of_run(run))
        show_data(run.task, console)
        if arguments.remat:
            console.print()
            console.print(fit_width(remat_table(run), console.width))
        return 0
    with live_page(output, arguments.live and distributed.is_coordinator(), console):
        return _train(run, job, devices, console)


def _train(run: Run, job: Job, devices: Devices | None, console: Console) -> int:
    """Train the run, and show the job; return the exit code."""
    with stop_on_signals() as stop:
        totals = RunTotals(
            runs=1,
            steps=run.training.steps,
            describe=lambda rate: Price.of(run, devices).describe(rate),  # counts no FLOPs before a step is taken
        )
        diverged = follow(train(run, job, stop), console, totals)
    if stop.by is not None:
        console.print(
            f"Incomplete: stopped by {stop.by.name}; the same command resumes from the newest checkpoint in "
            f"{job.output}."
        )
        return INTERRUPTED
    if distributed.is_coordinator():
        show_job(job.output, console)
    return FAILED if diverged else 0


@dataclasses.dataclass(frozen=True)
class Price:
    """Work of a run, and the devices that do it."""

    flops: int
    """FLOPs of the matrix products of one step, 3 × the FLOPs of the forward pass."""
    device: str
    devices: Devices
    peak: float | None
    """Published FLOP/s of all devices together; None where there is no such number."""

    @classmethod
    def of(cls, run: Run, devices: Devices | None = None) -> "Price":
        """Return the price of a run on these devices; nothing is compiled."""
        return cls(model_flops(run), jax.devices()[0].device_kind, devices or Devices(), peak_of(run, devices))

    def show(self, console: Console, run: Run) -> None:
        """Print the modules; then parameters, FLOPs, steps, tokens and devices."""
        console.print(fit_width(modules_table(run.model), console.width))
        console.print()
        steps, tokens, number = run.training.steps, run.tokens_per_step, micro_batches(run)
        split = f", in {number} micro-batches" if number > 1 else ""
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
            console.print(line)

    def show_measured(self, console: Console, run: Run, step: Cost) -> None:
        """Print the memory of a step on one device, and the time of the run."""
        is_shared = self.devices.count > 1
        seconds = step.seconds_per_step * run.training.steps / self.devices.count + step.compile_seconds
        memory = f"{with_prefix(step.bytes_per_member, 'B')} of memory per step{' on one device' * is_shared}"
        console.print(f"{memory}; {_about(seconds, is_shared)}, without evaluations")
        if step.formulations:
            console.print(f"formulations: {step.formulations}")

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
