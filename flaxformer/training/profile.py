"""Profiles: a trace of some steps of a training, by `jax.profiler`, in the form that xprof and Perfetto open.

A chunk of steps is one call of a compiled program, so a trace has whole chunks. Around the trace, chunks have at most
as many steps as are asked for; the program of this length is called once before the trace begins, so that its
compilation is not in it. The division into chunks changes no number of the run.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from flaxformer.system.settings import ProfiledSteps
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.loop import TrainedSteps, chunk_steps, train_chunks
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState


class Trace(NamedTuple):
    """A trace of steps of a run.

    Args:
      folder: the folder that jax.profiler has made; the folder of traces if it has failed.
      first, last: the first and the last of the steps, from 1.
      seconds: time in the calls of the compiled program.
      chunk: number of steps of one call.
      error: what is wrong if there is no trace.
    """

    folder: Path
    first: int
    last: int
    seconds: float
    chunk: int
    error: str = ""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1

    @property
    def program(self) -> str:
        """Name of the program in `CompiledRun.programs`."""
        return f"advance {self.chunk}"


class _Plan(NamedTuple):
    """Steps at which the length of chunks changes, and the shorter length."""

    shorter: int
    begin: int
    end: int
    longer: int
    chunk: int


def _plan(profile: ProfiledSteps, first: int, last: int, size: int) -> _Plan:
    """Return the division of the steps from `first` to `last`; the trace has the chunks with the profiled steps."""
    chunk = chunk_steps(profile.count, size)
    begin = max(first + size if profile.first is None else profile.first - 1, first + chunk)
    begin = max(first, min(begin, last - profile.count))
    end = min(last, math.ceil((begin + profile.count) / chunk) * chunk)
    begin = max(first, begin - begin % chunk)
    shorter = max(first, (begin - chunk) // size * size)  # the program of this length is called before the trace
    return _Plan(shorter, begin, end, min(last, math.ceil(end / size) * size), chunk)


def profiled_chunks(
    profile: ProfiledSteps | None,
    folder: Path | None,
    compiled: CompiledRun,
    run: Run,
    state: TrainState,
    first: int,
    last: int,
    size: int,
) -> Iterator[TrainedSteps | Trace]:
    """Train as `train_chunks` does, and yield the trace of the profiled steps after their last chunk.

    Args:
      profile: the steps; None for `train_chunks` alone.
      folder: folder of traces; None to divide the steps alike and trace none.
    """
    if profile is None:
        yield from train_chunks(compiled, run, state, first, last, size)
        return
    plan = _plan(profile, first, last, size)
    compiled.compile_advance(state, run, plan.chunk)

    def train(begin: int, end: int, size: int) -> Iterator[TrainedSteps]:
        nonlocal state
        for chunk in train_chunks(compiled, run, state, begin, end, size):
            state = chunk.state
            yield chunk

    yield from train(first, plan.shorter, size)
    yield from train(plan.shorter, plan.begin, plan.chunk)
    traced = train(plan.begin, plan.end, plan.chunk)
    if folder is None or plan.begin == plan.end:
        yield from traced
    else:
        yield from _traced(folder, traced, plan)
    yield from train(plan.end, plan.longer, plan.chunk)
    yield from train(plan.longer, last, size)


def _traced(folder: Path, chunks: Iterator[TrainedSteps], plan: _Plan) -> Iterator[TrainedSteps | Trace]:
    """Yield chunks while a trace is taken, and then the trace."""
    before, seconds, tracer = _sessions(folder), 0.0, StepTracer(folder)
    step = plan.begin
    try:
        while step < plan.end:
            began = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                chunk = next(chunks)
            seconds, step = seconds + time.perf_counter() - began, chunk.step
            yield chunk
    finally:
        tracer.stop()
    made = sorted(_sessions(folder) - before)
    error = tracer.error or ("" if made else f"jax.profiler wrote nothing into {folder}")
    yield Trace(made[-1] if made else folder, plan.begin + 1, plan.end, seconds, plan.chunk, error)


def _sessions(folder: Path) -> set[Path]:
    """The folders that jax.profiler has made, one per trace."""
    return set((folder / "plugins" / "profile").glob("*"))


class StepTracer:
    """A trace that is being taken; a failure is kept in `error`, and harms nothing else."""

    def __init__(self, folder: Path) -> None:
        self.error = ""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of Python would be an event, and slow the steps
        with self._noting():
            jax.profiler.start_trace(folder, profiler_options=options)

    def stop(self) -> None:
        """End the trace and write it."""
        if not self.error:
            with self._noting():
                jax.profiler.stop_trace()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of JAX, another trace is running; of the file system, it is full
            self.error = " ".join(f"{type(error).__name__}: {error}".split())
