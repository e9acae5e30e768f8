"""Time of `plan`, `status` and `report` on a study of many trials, from the start of the process to its end.

Command: flaxformer bench folders trials=200,1000,10000
Work: `large_study.py` with all trials finished. A plan compiles its programs, or reads them (-cached) from the cache of
the command, filled by an unmeasured plan.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

HERE = Path(__file__).parent


def command(*words: str, cached: bool = False) -> Callable[[Work], dict[str, Any]]:
    """A command on the filled folder, DIR, or the study, FILE, with as many trials; `cached` keeps what it compiles."""

    def measure(work: Work) -> dict[str, Any]:
        folder, trials = work.scratch / f"large-{work['trials']}", work["trials"]
        if not folder.exists():
            subprocess.run([sys.executable, str(HERE / "large_study.py"), str(folder), str(trials)], check=True)
        file = work.scratch / f"study_{trials}.py"
        file.write_text(
            f"import sys\nsys.path.append({str(HERE)!r})\n"
            f"from large_study import study_of\nstudy = study_of({trials})\n"
        )
        known = {"DIR": [str(folder)], "FILE": [str(file), "--output", str(folder)]}
        line = [part for word in words for part in known.get(word, [word])]
        kept = {"JAX_ENABLE_COMPILATION_CACHE": "true", "XDG_CACHE_HOME": str(work.scratch)} if cached else {}
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "flaxformer.cli", *line], stdout=subprocess.DEVNULL, env=os.environ | kept
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(line)} ended with {process.returncode}")
        # On Linux ru_maxrss is in KiB, and begins with that of this process, which is small.
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {"seconds": seconds, "processor_seconds": used.ru_utime + used.ru_stime, "peak_memory_bytes": memory}

    return measure


benchmark = Benchmark(
    question="How long do the commands take on a study of many trials?",
    ways=[
        Way("help", command("run", "--help"), role="limit"),
        Way("plan", command("plan", "FILE"), role="ours", rehearsals=1),
        Way("plan-cached", command("plan", "FILE", cached=True), role="ours", rehearsals=1),
        Way("status", command("status", "DIR"), role="ours", rehearsals=1),
        Way("report", command("report", "DIR"), role="ours", rehearsals=1),
    ],
    options={"trials": (10_000,)},
    quick={"trials": (200,)},
    compared="seconds",
    lower_is_better=True,
    reference="help",
    columns={"seconds": "seconds", "processor_seconds": "processor, s", "peak_memory_bytes": "memory, MB"},
    along="trials",
    rounds=3,
)
