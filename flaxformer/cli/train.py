"""The command `flaxformer train FILE`."""

import dataclasses
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flaxformer import distributed, model, params
from flaxformer.checkpoint import stopping
from flaxformer.cli.options import FAILED, option
from flaxformer.config import ModelConfig
from flaxformer.jobs import Diverged, Evaluated, Job, JobEvent, Sampled, Saved, Started, StepsTaken, check, train
from flaxformer.jobs.peak import model_flops, peak
from flaxformer.jobs.samples import printable
from flaxformer.jobs.train import devices_for
from flaxformer.model.layout import Layout
from flaxformer.overrides import override
from flaxformer.report.numbers import duration, number
from flaxformer.sharding import Devices, parse_devices
from flaxformer.study.load import load
from flaxformer.study.plan import Cost, cost_of_run, slow_decoding
from flaxformer.training import Run
from flaxformer.training.micro_batches import micro_batches
from flaxformer.user_code.changes import OnCodeChange

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
    samples: Annotated[int, option("N", "64; of a task of text", "tokens to show at each evaluation; 0 for none")] = 64
    track: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        option("NAME", "none", "also log to tensorboard or wandb; may be given twice"),
    ] = ()
    mesh: Annotated[
        str | None,
        option(
            "AXIS=N,…",
            "one accelerator; a CPU's cores where it pays",
            "devices along data, fsdp and tensor, as in data=4,tensor=2",
        ),
    ] = None
    coordinator: Annotated[
        str | None,
        option("HOST:PORT", "none; srun's own", "where the processes of one job meet; auto asks the cluster"),
    ] = None
    processes: Annotated[int | None, option("N", "the cluster's", "how many processes there are")] = None
    process: Annotated[int | None, option("N", "the cluster's", "which of them this one is, from 0")] = None
    on_code_change: Annotated[
        OnCodeChange,
        option("refuse|keep|retrain", "refuse", "what to do with results whose user code has changed since"),
    ] = "refuse"
    plan: Annotated[bool, tyro.conf.arg(help="show the plan, and train nothing")] = False

    def __call__(self, console: Console) -> int:
        distributed.initialize(self.coordinator, self.processes, self.process)
        console = console if distributed.is_coordinator() else Console(quiet=True)
        run = override(load(self.file, "run", Run), self.overrides)
        output = self.output or Path("runs") / self.file.stem
        own = ("output", "devices")
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(Job) if f.name not in own}
        devices = devices_for(run) if self.mesh is None else parse_devices(self.mesh)
        job = Job(output=output, devices=devices, **settings)
        distributed.run_on_coordinator(lambda: check(run, job))
        price = Price.of(run, devices)
        price.show(console, run)
        if self.plan:
            return 0
        with stopping() as stop:
            diverged = follow(train(run, job, stop), console, run, price)
            if stop.by is not None:
                console.print(f"Incomplete: {stop.by.name} came; the same command goes on. {output}", highlight=False)
        return FAILED if diverged else 0


@dataclasses.dataclass(frozen=True)
class Price:
    """Cost of a run, and the peak of the devices that pay, in FLOP/s, where one is published."""

    step: Cost
    flops: int
    """FLOPs of the model in one step, by its products."""
    device: str
    devices: Devices
    peak: float | None

    @classmethod
    def of(cls, run: Run, devices: Devices | None = None) -> "Price":
        """Return the cost of a run on these devices."""
        kind, devices = jax.devices()[0].device_kind, devices or Devices()
        one = peak(kind, run.training.precision)
        return cls(cost_of_run(run), model_flops(run), kind, devices, None if one is None else one * devices.count)

    def show(self, console: Console, run: Run) -> None:
        """Parameters by module, operations, memory, steps, tokens, and the time that they will take."""
        console.print(modules_table(run.model))
        steps, tokens, parts = run.training.steps, run.tokens_per_step, micro_batches(run)
        seconds = self.step.seconds_per_step * steps / self.devices.count + self.step.compile_seconds
        cut = f" in {parts} micro-batches" if parts > 1 else ""
        spread, of = self.devices.count > 1, f"of {jax.device_count()} {self.device} devices"
        known = "" if self.peak is None else f", of {self.peak / 1e12:,.0f} TFLOP/s at most"
        lines = (
            f"{self.step.parameters:,} parameters",
            f"{_si(self.flops / tokens, 'FLOP')} a token, {_si(self.flops, 'FLOP')} a step (products, forward × 3)",
            f"{_si(self.step.bytes_per_member, 'B')} of memory for a step{' on one device' * spread}",
            f"{steps:,} steps of {tokens:,} tokens{cut}, {steps * tokens:,} in all",
            f"{'at best' if spread else 'about'} {duration(seconds)}, without evaluations, on "
            f"{self.devices.count if spread else 'one'} {of}{known}",
            *slow_decoding([run.model]),
        )
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)

    def describe(self, steps_per_second: float) -> str:
        """Return the FLOP/s of the model, and their share of the peak."""
        flops = steps_per_second * self.flops
        share = "" if self.peak is None else f"  MFU {flops / self.peak:.1%}"
        return f"{_si(flops, 'FLOP/s')}{share}"


def _si(value: float, unit: str) -> str:
    """A number with three digits and a prefix: 854 MFLOP."""
    power = min(max(0, math.floor(math.log10(max(value, 1)) / 3)), 5)
    return f"{value / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'P'][power]}{unit}"


def modules_table(config: ModelConfig) -> Table:
    """The modules of a model as they are declared, the layers' together, with their weights and parameters."""
    counts: dict[str, int] = {}
    weights: dict[str, dict[str, None]] = {}
    for path, spec in params.table(model.specs(config)):
        module, _, name = re.sub(r"\bblocks/\d+/", "blocks/*/", path).rpartition("/")
        counts[module] = counts.get(module, 0) + math.prod(spec.shape)
        weights.setdefault(module, {})[f"{name} {'×'.join(map(str, spec.shape))}"] = None
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("module", no_wrap=True)
    table.add_column("weights")
    table.add_column("parameters", justify="right", no_wrap=True)
    for module, count in counts.items():
        table.add_row(module, ", ".join(weights[module]), f"{count:,}")
    return table


def follow(events: Iterable[JobEvent], console: Console, run: Run, price: Price) -> bool:
    """Show steps, loss, tokens per second, FLOP/s, MFU and time left; returns whether the run diverged."""
    columns = [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), BarColumn()]
    columns += [TextColumn("{task.fields[now]}"), TimeRemainingColumn()]
    printed, diverged = time.monotonic(), False
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=run.training.steps, now="compiling")
        for event in events:
            match event:
                case Started(step):
                    progress.update(bar, completed=step)
                    if step:
                        progress.console.print(f"going on after step {step:,}", highlight=False)
                case StepsTaken(step, loss, steps, seconds):
                    rate = steps / max(seconds, 1e-9)
                    now = f"loss {loss:.4f}  {rate * run.tokens_per_step:,.0f} tokens/s  {price.describe(rate)}"
                    progress.update(bar, completed=step, now=now)
                    if not console.is_terminal and time.monotonic() - printed > SECONDS_BETWEEN_LINES:
                        printed = time.monotonic()
                        left = duration((run.training.steps - step) / rate)
                        console.print(f"step {step:,}: {now}, {left} left", highlight=False)
                case Evaluated(step, metrics):
                    loss_first = sorted(metrics.items(), key=lambda item: item[0] != "validation_loss")
                    line = "  ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in loss_first)
                    progress.console.print(Text.assemble((f"step {step:>7,}  ", "dim"), line))
                case Sampled(_, prompt, text):
                    said = Text.assemble((printable(prompt), "dim"), printable(text))
                    progress.console.print(Padding(said, (0, 0, 0, 14), expand=False))
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
