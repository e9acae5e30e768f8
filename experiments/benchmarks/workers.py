"""Trials per hour of `flaxformer run`, in one process and with worker processes, and the overhead per trial.

Command: flaxformer bench workers
Work: XS of `sizes.py` in two programs (pre- and post-norm), learning rates × seeds; with steps=1, the time is almost
only the overhead per trial. Time is from the start of the process to its end, with programs compiled by an unmeasured
launch.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

HERE = Path(__file__).parent
FILE = """import sys
sys.path.append({here!r})
from workers import study_of
study = study_of({rates}, {seeds}, {steps})
"""


def study_of(rates: int, seeds: int, steps: int) -> Any:
    """Norms × rates × seeds."""
    from sizes import SIZES
    from study_runs import study_of

    from flaxformer import POST, PRE, Axis

    one = study_of(SIZES["XS"], rates, seeds, steps)
    return dataclasses.replace(one, axes=[Axis("model.norm", {"pre": PRE, "post": POST}), *one.axes])


def launched(*words: str) -> Callable[[Work], dict[str, Any]]:
    """One command, with an empty folder of results."""

    def measure(work: Work) -> dict[str, Any]:
        folder, file = work.scratch / "results", work.scratch / "study.py"
        shutil.rmtree(folder, ignore_errors=True)
        numbers = {name: work[name] for name in ("rates", "seeds", "steps")}
        file.write_text(FILE.format(here=str(HERE), **numbers))
        cache = {"JAX_COMPILATION_CACHE_DIR": str(work.scratch / "cache")}
        line = [sys.executable, "-m", "flaxformer.cli", "run", str(file), "--output", str(folder), *words]
        began = time.perf_counter()
        subprocess.run(line, env=os.environ | cache, stdout=subprocess.DEVNULL, check=True)
        seconds, trials = time.perf_counter() - began, 2 * work["rates"] * work["seeds"]
        line = [sys.executable, "-m", "flaxformer.cli", "status", str(folder), "--json"]
        done = json.loads(subprocess.run(line, capture_output=True, check=True, text=True).stdout)["done"]
        if done != trials:
            raise RuntimeError(f"{done} of {trials} trials are done")
        return {
            "seconds": seconds,
            "trials_per_hour": 3600 * trials / seconds,
            "milliseconds_per_trial": 1e3 * seconds / trials,
        }

    return measure


benchmark = Benchmark(
    question="How many trials of a study are done in an hour?",
    ways=[
        Way("one-device", launched("--devices", "1"), role="ours", rehearsals=1),
        Way("in-process", launched(), role="ours", rehearsals=1),
        Way("1-worker", launched("--launcher", "local", "--workers", "1"), role="ours", rehearsals=1),
        Way("2-workers", launched("--launcher", "local", "--workers", "2"), role="ours", rehearsals=1),
    ],
    options={"rates": (8,), "seeds": (4,), "steps": (1, 300)},
    quick={"rates": (1,), "seeds": (1,), "steps": (1,)},
    compared="trials_per_hour",
    reference="one-device",
    columns={"trials_per_hour": "trials/hour", "seconds": "seconds", "milliseconds_per_trial": "ms per trial"},
    rounds=3,
)
