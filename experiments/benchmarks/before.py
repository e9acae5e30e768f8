"""Speed of this checkout of flaxformer against another one, such as an earlier commit.

Command: git worktree add ../before COMMIT; flaxformer bench before checkout=../before
Work: what the benchmark of that name measures, with the code and the benchmark file of each checkout; `study` is
    `flaxformer run experiments/norm_and_scale.py` from the start of the process to its end, with an empty cache.
Cost: per round, two processes of 15 to 40 s per kind of work, and of 4 min for the study.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

BENCHMARKS = {
    **{f"training-{size}": ("training", f"size={size}", "seconds=4") for size in ("XS", "S", "M")},
    **{f"decoding-{batch}": ("decoding", "size=S", f"batch={batch}") for batch in (1, 16)},
}
"""The words after `flaxformer bench`, by the work's name."""
STUDY = "study"


def of_checkout(here: bool) -> Callable[[Work], dict[str, Any]]:
    """One benchmark, by this checkout or the other."""

    def measure(work: Work) -> dict[str, Any]:
        checkout = work.code(is_other=not here)
        output = work.scratch / "before"
        shutil.rmtree(output, ignore_errors=True)
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", "flaxformer.cli"]
        if work["work"] == STUDY:
            command += ["run", "experiments/norm_and_scale.py", "--output", str(output)]
        else:
            command += ["bench", *BENCHMARKS[work["work"]], "--only", "flaxformer", "--reference", "flaxformer"]
            command += ["--rounds", "1", "--output", str(output)]
        began = time.perf_counter()
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        if work["work"] == STUDY:
            return {"per_second": 1 / seconds, "first_step_seconds": None, "seconds": seconds}
        [file] = output.glob("*.json")
        [found] = json.loads(file.read_text())["measurements"]
        numbers = found["numbers"]
        return {"per_second": numbers["tokens_per_second"], "first_step_seconds": numbers.get("first_step_seconds")}

    return measure


benchmark = Benchmark(
    question="Is this checkout as fast as another one?",
    ways=[
        Way("before", of_checkout(False), path="checkout", get="git worktree add ../before COMMIT"),
        Way("now", of_checkout(True), role="ours"),
    ],
    options={"checkout": ("",), "work": (*BENCHMARKS,)},
    quick={"work": ("training-XS",)},
    choices={"work": (*BENCHMARKS,)},
    compared="per_second",
    reference="before",
    columns={"per_second": "tokens/s, or studies/s", "first_step_seconds": "first step, s", "seconds": "seconds"},
    rounds=3,
)
