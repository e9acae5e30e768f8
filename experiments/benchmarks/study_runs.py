"""The runs of the study benchmark, trained without the study engine: one after another, or one per process."""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import jax
from our_runs import run_of
from sizes import SIZES, Size

from flaxformer import Axis, Run, Study, evaluate, evaluation_params, start, train_chunk
from flaxformer.study.load import load_study
from flaxformer.tasks.batch import Source

CHUNK = 50


def declared(file: str, width: int, **of: int) -> Study:
    """The study that a file declares; without one, that of size XS at a width."""
    return load_study(Path(file)) if file else study_of(dataclasses.replace(SIZES["XS"], width=width), **of)


def study_of(size: Size, trials: int, seeds: int, steps: int) -> Study:
    """Learning rates by seeds: one program."""
    run = run_of(size, steps)
    baseline = run.replace(task=run.task.replace(evaluation_batches=4))
    rates = {f"{i}": 1e-3 * 2 ** (i / 4) for i in range(trials)}
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
    """One run as the engine trains it: evaluated as often, its losses fetched chunk by chunk."""
    begin, advance, measure = functions()
    state, chunk = begin(run, "auto"), min(CHUNK, run.training.interval)
    metrics = jax.device_get(measure(state, run, source))
    for step in range(chunk, run.training.steps + 1, chunk):
        state, losses = advance(state, run, source, chunk)
        jax.device_get(losses)
        if step % run.training.interval == 0:
            metrics = jax.device_get(measure(state, run, source))
    return float(metrics["validation_loss"])


def train_all(runs: list[Run]) -> list[float]:
    """Every run, on one device."""
    source = runs[0].task.load()
    return [train(run, source) for run in runs]


def main(words: dict[str, Any]) -> None:
    """One run in this process: python study_runs.py '{"index": 0, "cache": null, "file": …}'."""
    index, cache = words.pop("index"), words.pop("cache")
    if cache:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    train_all([declared(**words).trials()[index].run])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
