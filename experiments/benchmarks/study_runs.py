"""The runs of the study benchmark, trained without the study engine: one after another, or one a process."""

import dataclasses
import functools
import json
import sys
from typing import Any

import jax
from ours import run_of
from sizes import SIZES, Size

from flaxformer.study import Axis, Study
from flaxformer.tasks.base import Source
from flaxformer.training import Run, evaluate, evaluation_params, start, train_chunk

CHUNK = 50


def study_of(size: Size, cells: int, seeds: int, steps: int) -> Study:
    """Learning rates by seeds: one program."""
    run = run_of(size, steps)
    baseline = run.replace(task=run.task.replace(evaluation_batches=4))
    rates = {f"{i}": 1e-3 * 2 ** (i / 4) for i in range(cells)}
    return Study(
        name="benchmark",
        question="Which learning rate?",
        baseline=baseline,
        axes=[Axis("optimizer.learning_rate", rates, name="rate")],
        seeds=range(seeds),
    )


@functools.cache
def functions() -> tuple[Any, Any, Any]:
    """Start, a chunk of steps, evaluation: compiled once for all runs of one structure, numbers being arguments."""

    def measure(state: Any, run: Run, source: Source) -> Any:
        return evaluate(evaluation_params(state, run), run, source)

    return (
        jax.jit(start, static_argnums=1),
        jax.jit(train_chunk, static_argnums=3, donate_argnums=0),
        jax.jit(measure),
    )


def train(run: Run, source: Source) -> float:
    """One run as the engine trains it: evaluated before and after, its losses fetched chunk by chunk."""
    begin, advance, measure = functions()
    state, chunk = begin(run, "auto"), min(CHUNK, run.training.steps)
    jax.device_get(measure(state, run, source))
    for _ in range(run.training.steps // chunk):
        state, metrics = advance(state, run, source, chunk)
        jax.device_get(metrics)
    return float(measure(state, run, source)["validation_loss"])


def train_all(runs: list[Run]) -> list[float]:
    """Every run, on one device."""
    source = runs[0].task.load()
    return [train(run, source) for run in runs]


def main(words: dict[str, Any]) -> None:
    """One run in this process: python study_runs.py '{"index": 0, "cache": null, "width": …}'."""
    index, cache = words.pop("index"), words.pop("cache")
    if cache:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    size = dataclasses.replace(SIZES["XS"], width=words.pop("width"))
    train_all([study_of(size, **words).cells()[index].run])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
