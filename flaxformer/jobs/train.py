"""The training loop: chunks of compiled steps, and between them evaluation, log and checkpoint."""

import contextlib
import dataclasses
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from flaxformer import distributed
from flaxformer.checkpoint import Checkpoints, Stop, write_config
from flaxformer.checkpoint.config import NAME as CONFIG
from flaxformer.checkpoint.config import check_config
from flaxformer.files import locked
from flaxformer.jobs import trackers
from flaxformer.jobs.events import Diverged, Evaluated, JobEvent, Sampled, Saved, Started, StepsTaken
from flaxformer.jobs.log import Log
from flaxformer.jobs.programs import Programs
from flaxformer.jobs.samples import Sample, sampler
from flaxformer.model.layout import Layout
from flaxformer.params import fold_in_name
from flaxformer.sharding import Devices
from flaxformer.struct import UserError, classes_in
from flaxformer.tasks.base import Source
from flaxformer.training import Run, TrainState
from flaxformer.training.micro_batches import check_batch, kept_bytes, separable
from flaxformer.training.step import ALIVE
from flaxformer.user_code import code_digests, copy_sources, user_modules
from flaxformer.user_code.changes import OnCodeChange

LOG = logging.getLogger(__name__)
LEAST = {"chunk_steps": 1, "save_every": 1, "keep_last": 1, "keep_best": 0, "samples": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of training and saving a run, none of which changes its numbers.

    Args:
      output: its folder.
      chunk_steps: steps between two looks at progress and signals; rounded down to a divisor of both intervals.
      save_every: steps between two checkpoints; by default as many as between two evaluations.
      keep_last, keep_best: how many of the newest and of the best checkpoints stay.
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      samples: tokens that a model of text generates at each evaluation; 0 for none.
      track: where the log goes beside its file: "tensorboard", "wandb".
      devices: the mesh that the job is trained on; None for what `devices_for` says.
      file: the file that declares the run, whose code counts as the run's.
      on_code_change: what to do where user code has changed since the folder's checkpoints were made: "refuse" to
        train, "keep" them and go on, or "retrain", which sets them aside and begins anew.
    """

    output: Path
    chunk_steps: int = 50
    save_every: int | None = None
    keep_last: int = 2
    keep_best: int = 1
    layout: Layout = "auto"
    samples: int = 64
    track: tuple[str, ...] = ()
    devices: Devices | None = None
    file: Path | None = None
    on_code_change: OnCodeChange = "refuse"

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}; expected at least {least}")
        trackers.check(self.track)


SPREAD = 1e7
"""Bytes of activations, by `kept_bytes`, from which on a step is shared among a CPU's cores as devices."""


def devices_for(run: Run) -> Devices | None:
    """Return the default devices of a run; None for one device.

    All devices of several processes, along data. On one CPU, of whose cores each is a device, as many as cut the batch
    evenly: each core computes its own examples in its own caches, which is up to a quarter faster than sharing every
    product (`experiments/benchmarks/README.md`). But not a run whose examples hang together, or a small one.
    """
    if jax.process_count() > 1:
        return Devices(data=jax.device_count())
    rows = run.task.batch_size // getattr(run.task, "buckets", 1) // (run.training.micro_batches or 1)
    count = math.gcd(jax.device_count(), rows)
    worth_it = jax.default_backend() == "cpu" and separable(run) and kept_bytes(run) >= SPREAD
    return Devices(data=count) if worth_it and count > 1 else None


def check(run: Run, job: Job) -> None:
    """Check, before anything is computed, that the folder is this run's or unused, and that the devices exist.

    Raises:
      UserError: it holds another run, and the message lists what differs; it cannot be written to; or the devices are
        too few, or no divisor of the batch.
    """
    there = next(path for path in (job.output, *job.output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        kind = "cannot be written to" if there.is_dir() else "is a file"
        raise UserError(f"output is '{job.output}', and '{there}' {kind}; expected a folder, there or to be made")
    if (job.output / CONFIG).exists():
        check_config(job.output, run, _code(run, job), job.on_code_change)
    if job.devices is not None:
        job.devices.mesh()
        check_batch(run, job.devices)


def _code(run: Run, job: Job) -> dict[str, str]:
    """Digests of the user code that the run uses."""
    return code_digests(classes_in(run), job.file)


def train(run: Run, job: Job, stop: Stop) -> Iterator[JobEvent]:
    """Train a run to its last step, or until `stop` is asked, from its newest checkpoint if it has one.

    A run that was stopped, or killed, and goes on equals the uninterrupted one bit for bit on the same devices: batches
    and dropout are functions of (seed, step), and the state holds the rest. When it is asked to stop, it finishes its
    chunk and saves. A run whose loss is no longer finite ends there.

    Of several processes all train, and the first alone reads and writes the folder, and samples.

    Raises:
      UserError: another process trains in the folder, it holds another run, or a checkpoint could not be saved.
    """
    with contextlib.ExitStack() as held:

        def begin() -> None:
            check(run, job)
            held.enter_context(locked(job.output, "training"))
            code, modules = _code(run, job), user_modules(job.file)
            copied = copy_sources(job.output / "code", modules)
            source = f"code/{copied}/{job.file.name}" if copied and job.file is not None else None
            write_config(job.output, run, code, job.on_code_change, source)

        distributed.run_on_coordinator(begin)
        programs = Programs(run, job.layout, job.devices or devices_for(run))
        checkpoints = Checkpoints(job.output, keep_last=job.keep_last, keep_best=job.keep_best)
        step, state = 0, programs.start()
        if distributed.run_on_coordinator(checkpoints.steps):
            step, state = checkpoints.restore(state)
        yield Started(step)
        try:
            yield from _steps(programs, job, stop, checkpoints, state, step)
            distributed.run_on_coordinator(checkpoints.wait)
        finally:
            checkpoints.wait()


def _steps(
    programs: Programs, job: Job, stop: Stop, checkpoints: Checkpoints, state: TrainState, step: int
) -> Iterator[StepsTaken | Evaluated | Sampled | Saved | Diverged]:
    """From a state on: chunk by chunk, with what is due between them."""
    run, loaded = programs.run, programs.run.task.load()
    source = programs.shard_source(loaded)
    interval, saves = run.training.interval, job.save_every or run.training.interval
    metrics: dict[str, float] = {}
    with logging_to(run, job, step) as log:
        evaluate = _Evaluation(programs, source, log, sampler(run, loaded, job.samples))
        if step == 0:
            metrics, events = evaluate(state, step)
            yield from events
        for chunk, steps in _chunks(programs, job, source, step, saves):
            began = time.perf_counter()
            state, computed = programs.advance(state, chunk, steps)
            step += steps
            curves = {name: [float(x) for x in numbers] for name, numbers in jax.device_get(computed).items()}
            seconds = time.perf_counter() - began
            log(kind="steps", step=step, seconds=seconds, **curves)
            yield StepsTaken(step, curves["loss"][-1], steps, seconds)
            if step % interval == 0:
                metrics, events = evaluate(state, step)
                yield from events
            if asked := distributed.all_reduce_max(stop.by or 0):
                stop.by = signal.Signals(asked)
            if step % saves == 0 or asked or step == run.training.steps:
                checkpoints.save(step, state, metrics if step % interval == 0 else {})
                yield Saved(step)
            if (diverged_at := int(state.diverged_at)) != ALIVE:
                yield Diverged(diverged_at)
            if asked or diverged_at != ALIVE:
                return


@contextlib.contextmanager
def logging_to(run: Run, job: Job, step: int) -> Iterator[Callable[..., None]]:
    """Appends to the run's log from a step on, and to those that are told of it; in the first process alone."""
    if not distributed.is_coordinator():
        yield lambda **line: None
        return
    attached = [trackers.Tracker(name, job.output, run, LOG.warning) for name in job.track]
    try:
        yield Log(job.output, step, attached).append
    finally:
        for tracker in attached:
            tracker.close()


class _Evaluation:
    """Evaluate, and draw a sample where the task has text; both go to the log."""

    def __init__(
        self,
        programs: Programs,
        source: Source,
        log: Callable[..., None],
        sample: Callable[[Any, int], Sample] | None,
    ) -> None:
        self.programs, self.source, self.log, self.sample = programs, source, log, sample

    def __call__(self, state: TrainState, step: int) -> tuple[dict[str, float], list[Evaluated | Sampled]]:
        metrics = self.programs.evaluate(state, self.source)
        self.log(kind="evaluation", step=step, **metrics)
        events: list[Evaluated | Sampled] = [Evaluated(step, metrics)]
        if self.sample is not None:
            weights = self.programs.weights(state)  # of which every process has a part
            if distributed.is_coordinator():
                said = self.sample(weights, step)
                self.log(kind="sample", step=step, prompt=said.prompt, text=said.text)
                events.append(Sampled(step, said.prompt, said.text))
        return metrics, events


def _chunks(programs: Programs, job: Job, source: Source, first: int, saves: int) -> Iterator[tuple[Any, int]]:
    """Yield data, and for how many steps, until the last step; no chunk steps over an evaluation or a save."""
    run = programs.run
    every = math.gcd(run.training.interval, saves)
    size = next(n for n in range(min(job.chunk_steps, every), 0, -1) if every % n == 0)
    last, key = run.training.steps, fold_in_name(jax.random.key(run.seed), "data")
    # A launch with chunks of another length may have stopped between two of these boundaries.
    boundary = min(first + -first % size, last)
    for begin, end in ((first, boundary), (boundary, last)):
        yield from programs.chunks(source, key, begin, end, size)
