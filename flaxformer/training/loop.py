"""The training loop of studies and of single runs: chunks of compiled steps."""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState


class TrainedSteps(NamedTuple):
    """Steps that were taken by one call of the compiled function.

    step: number of steps taken since the first of the run.
    steps: number of steps of the chunk.
    state: after them; the next chunk is computed in its memory.
    curves: metrics of each step, on the host.
    seconds: time that they took.
    """

    step: int
    steps: int
    state: TrainState
    curves: dict[str, np.ndarray]
    seconds: float


def train_chunks(
    compiled: CompiledRun, run: Run, state: TrainState, first: int, last: int, size: int
) -> Iterator[TrainedSteps]:
    """Train from step `first` to `last`, and yield each chunk when its steps are taken.

    Chunks end at multiples of `size`, so that none extends beyond an evaluation or a save if their intervals are
    multiples of it; a launch with chunks of another length may have stopped between two of these boundaries.
    """
    step, boundary = first, min(first + -first % size, last)
    for begin, end in ((first, boundary), (boundary, last)):
        for source, steps in compiled.chunks(run, begin, end, size):
            began = time.perf_counter()
            state, metrics = compiled.advance(state, run, steps, source)
            step += steps
            curves = jax.device_get(metrics)
            yield TrainedSteps(step, steps, state, curves, time.perf_counter() - began)


def chunk_steps(most: int, *intervals: int) -> int:
    """Return the largest number of steps, up to `most`, of which all intervals are multiples."""
    every = math.gcd(*intervals)
    return next(n for n in range(min(most, every), 0, -1) if every % n == 0)
