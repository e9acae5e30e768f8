"""The training loop: chunks of compiled steps, and between them evaluation, log and checkpoint."""

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from flaxformer.checkpoint import Checkpoints, Stop, write_config
from flaxformer.files import locked
from flaxformer.jobs.log import Log
from flaxformer.model.transformer import Layout
from flaxformer.params import stream
from flaxformer.struct import UserError
from flaxformer.tasks.base import Source
from flaxformer.tasks.host import HostSource, ahead
from flaxformer.training import Run, State, evaluate, evaluation_params, start, train_chunk
from flaxformer.training.step import ALIVE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """How a run is trained and kept; nothing here changes a number of it.

    Args:
      output: its folder.
      chunk_steps: steps between two looks at progress and signals; rounded down to a divisor of both intervals.
      save_every: steps between two checkpoints; by default as many as between two evaluations.
      keep_last, keep_best: how many of the newest and of the best checkpoints stay.
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
    """

    output: Path
    chunk_steps: int = 50
    save_every: int | None = None
    keep_last: int = 2
    keep_best: int = 1
    layout: Layout = "auto"

    def __post_init__(self) -> None:
        for name in ("chunk_steps", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; expected at least 1")


@dataclasses.dataclass(frozen=True)
class Started:
    """The run begins, or goes on after its newest checkpoint."""

    step: int


@dataclasses.dataclass(frozen=True)
class Advanced:
    """Some steps were taken."""

    step: int
    loss: float
    steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The evaluation set was read."""

    step: int
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint is on its way to the disk."""

    step: int


@dataclasses.dataclass(frozen=True)
class Diverged:
    """The loss or a gradient was not finite at this step: nothing was changed from there on."""

    step: int


Event = Started | Advanced | Evaluated | Saved | Diverged


def train(run: Run, job: Job, stop: Stop) -> Iterator[Event]:
    """Train a run to its last step, or until `stop` is asked, from its newest checkpoint if it has one.

    A run that was stopped, or killed, and goes on equals the uninterrupted one bit for bit on the same devices: batches
    and dropout are functions of (seed, step), and the state holds the rest. When it is asked to stop, it finishes its
    chunk and saves. A run whose loss is no longer finite ends there.

    Raises:
      UserError: another process trains in the folder, it holds another run, or a checkpoint could not be saved.
    """
    job.output.mkdir(parents=True, exist_ok=True)
    with locked(job.output, "training"):
        write_config(job.output, run)
        checkpoints = Checkpoints(job.output, keep_last=job.keep_last, keep_best=job.keep_best)
        step, state = 0, jax.jit(start, static_argnums=1)(run, job.layout)
        if checkpoints.steps():
            step, state = checkpoints.restore(state)
        yield Started(step)
        try:
            yield from _steps(run, job, stop, checkpoints, state, step)
        finally:
            checkpoints.wait()


def _steps(
    run: Run, job: Job, stop: Stop, checkpoints: Checkpoints, state: State, step: int
) -> Iterator[Advanced | Evaluated | Saved | Diverged]:
    """From a state on: chunk by chunk, with what is due between them."""
    log, source = Log(job.output, step), run.task.load()
    interval, saves = run.training.interval, job.save_every or run.training.interval
    metrics: dict[str, float] = {}
    if step == 0:
        metrics = _evaluated(run, state, source, log, step)
        yield Evaluated(step, metrics)
    for chunk, steps in _chunks(run, job, source, step, saves):
        began = time.perf_counter()
        state, told = _advance(state, run, chunk, steps)
        step += steps
        told = {name: [float(x) for x in numbers] for name, numbers in jax.device_get(told).items()}
        seconds = time.perf_counter() - began
        log.append(kind="steps", step=step, seconds=seconds, **told)
        yield Advanced(step, told["loss"][-1], steps, seconds)
        if step % interval == 0:
            metrics = _evaluated(run, state, source, log, step)
            yield Evaluated(step, metrics)
        if step % saves == 0 or stop.asked or step == run.training.steps:
            checkpoints.save(step, state, metrics if step % interval == 0 else {})
            yield Saved(step)
        if (diverged_at := int(state.diverged_at)) != ALIVE:
            yield Diverged(diverged_at)
        if stop.asked or diverged_at != ALIVE:
            return


_advance = jax.jit(train_chunk, static_argnums=3, donate_argnums=0)
_evaluate = jax.jit(lambda state, run, source: evaluate(evaluation_params(state, run), run, source))


def _evaluated(run: Run, state: State, source: Source, log: Log, step: int) -> dict[str, float]:
    found = jax.device_get(_evaluate(state, run, source))
    metrics = {name: float(value) for name, value in found.items()}
    log.append(kind="evaluation", step=step, **metrics)
    return metrics


def _chunks(run: Run, job: Job, source: Source, first: int, saves: int) -> Iterator[tuple[Any, int]]:
    """What to train on, and for how many steps, until the last step; no chunk steps over an evaluation or a save."""
    every = math.gcd(run.training.interval, saves)
    size = next(n for n in range(min(job.chunk_steps, every), 0, -1) if every % n == 0)
    last, key = run.training.steps, stream(jax.random.key(run.seed), "data")
    # A launch with chunks of another length may have stopped between two of these boundaries.
    boundary = min(first + -first % size, last)
    for begin, end in ((first, boundary), (boundary, last)):
        if isinstance(source, HostSource):
            yield from ahead(source, key, begin, end, size)
        else:
            yield from ((source, min(size, end - at)) for at in range(begin, end, size))
