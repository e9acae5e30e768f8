"""Study of trials × seeds as one program, against the same runs one after another.

Command: flaxformer bench study; over width, without the slow ways:
    flaxformer bench study width=16,32,64,128 --only one-compilation study-1 study-2 study-4 study-8
    for the study of a file, every tenth run of which is measured as a process of its own:
    flaxformer bench study file=experiments/norm_and_scale.py every=10 --only study-1 one-compilation processes
Ways: study-N is `flaxformer run` with N runs at a time per device (N > 1 uses vmap); one-compilation trains the runs in
turn in one process, compiled once, on one device with all cores; processes starts one process per run, like a loop in a
shell; processes-cached shares the persistent cache of JAX, which the first process fills.
Measured: seconds in all, from the start of the process, imports and compilation included; without these it is
    --compared training_seconds (not of processes, which pay for them in every run).
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

NAMES = ("file", "width", "trials", "seeds", "steps")


def study_of(work: Work) -> Any:
    """The study that is measured."""
    import study_runs

    return study_runs.declared(**{name: work[name] for name in NAMES})


def finished(work: Work, runs: int, training: float) -> dict[str, Any]:
    """Return the measurements of a way at its end."""
    return {"seconds": work.since_start(), "training_seconds": training, "runs_per_hour": 3600 * runs / training}


def engine(members: int | None) -> Callable[[Work], dict[str, Any]]:
    """The study engine, on all devices; without a number, in groups of the size that memory gives on accelerators."""

    def measure(work: Work) -> dict[str, Any]:
        from ours import timed

        found = timed(study_of(work), members)
        return {**finished(work, found["runs"], found["training_seconds"]), **found}

    return measure


def one_compilation(work: Work) -> dict[str, Any]:
    """One run after another in this process; the first is trained twice, so that compiling is told apart."""
    from study_runs import train_all

    runs = [trial.run for trial in study_of(work).trials()]
    began = time.perf_counter()
    train_all(runs[:1])
    first = time.perf_counter() - began
    began = time.perf_counter()
    train_all(runs)
    training = time.perf_counter() - began
    compiling = first - training / len(runs)
    # The run that was trained twice counts once.
    return {
        **finished(work, len(runs), training),
        "seconds": work.since_start() - training / len(runs),
        "compile_seconds": compiling,
    }


def processes(cached: bool) -> Callable[[Work], dict[str, Any]]:
    """A process a run, one after another; of one run in `every`, and the time is told for all of them."""

    def measure(work: Work) -> dict[str, Any]:
        cache = work.scratch / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        script, runs = Path(__file__).parent / "study_runs.py", len(study_of(work).trials())
        words = {name: work[name] for name in NAMES} | {"cache": str(cache) if cached else None}
        measured, began = range(0, runs, work["every"]), time.perf_counter()
        for index in measured:
            subprocess.run([sys.executable, str(script), json.dumps(words | {"index": index})], check=True)
        seconds = (time.perf_counter() - began) * runs / len(measured)
        return {**finished(work, runs, seconds), "seconds": seconds, "processes": len(measured)}

    return measure


benchmark = Benchmark(
    question="How much faster is a study as one program than its runs one after another?",
    ways=[
        *(Way(f"study-{members}", engine(members), role="ours") for members in (1, 2, 4, 8)),
        Way("one-compilation", one_compilation),
        Way("processes-cached", processes(cached=True)),
        Way("processes", processes(cached=False)),
    ],
    options={"file": ("",), "width": (64,), "trials": (4,), "seeds": (2,), "steps": (300,), "every": (1,)},
    quick={"width": (16,), "trials": (2,), "seeds": (1,), "steps": (2,)},
    compared="seconds",
    lower_is_better=True,
    reference="one-compilation",
    columns={
        "seconds": "seconds in all",
        "training_seconds": "training, s",
        "compile_seconds": "compiling, s",
        "peak_memory_bytes": "memory, MB",
    },
    along="width",
    rounds=3,
)
