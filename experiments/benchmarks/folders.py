"""Cost of `plan`, `status` and `report` on a study of many trials, from the start of the process to its end.

Command: flaxformer bench folders; against an earlier commit, git worktree add ../before COMMIT, and checkout=../before
Work: `large_study.py` with all trials finished, of ARMSxSEEDS: many arms at few seeds, and few arms at many seeds. A
    plan compiles its programs. A way that ends in -before is the command of the other checkout, on its own folder.
Measured: processor seconds, which other work on the machine changes little; seconds; peak memory; bytes of the page.
Cost: per round and shape, a minute of processor time; with checkout=, ten more, most of it `report`.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

HERE = Path(__file__).parent
COMMANDS = {"plan": ["FILE"], "status": ["DIR"], "report": ["DIR"]}


def study_folder(work: Work, checkout: Path) -> Path:
    """The filled folder of a checkout, which all its ways share; it is made by the first, in a rehearsal."""
    name = "-".join((work["shape"], *checkout.resolve().parts[-2:]))
    folder = work.scratch.parent / name
    if not folder.exists():
        arms, seeds = work["shape"].split("x")
        for part, code in (("declare", checkout), ("fill", work.code(is_other=False))):
            command = [sys.executable, str(HERE / "large_study.py"), part, f"{folder}.part", arms, seeds]
            subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(code)})
        Path(f"{folder}.part").rename(folder)
    return folder


def command(name: str, before: bool = False) -> Callable[[Work], dict[str, Any]]:
    """A command on the filled folder, or on the study."""

    def measure(work: Work) -> dict[str, Any]:
        checkout = work.code(before)
        folder = study_folder(work, checkout) if name in COMMANDS else work.scratch
        file = work.scratch / "study.py"
        arms, seeds = work["shape"].split("x")
        file.write_text(
            f"import sys\nsys.path.append({str(HERE)!r})\n"
            f"from large_study import study_of\nstudy = study_of({arms}, {seeds})\n"
        )
        places = {"DIR": [str(folder)], "FILE": [str(file), "--output", str(folder)]}
        words = [part for word in COMMANDS.get(name, []) for part in places[word]]
        found = run([name, *words] if name in COMMANDS else ["run", "--help"], checkout, work["limit"])
        page = folder / "report.html"
        return found | ({"page_bytes": page.stat().st_size} if name == "report" else {})

    return measure


def run(words: Sequence[str], checkout: Path, limit: float) -> dict[str, Any]:
    """Run a command of a checkout, for at most so many seconds; return its cost."""
    began = time.perf_counter()
    line = [sys.executable, "-m", "flaxformer.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    process = subprocess.Popen(line, cwd=checkout, stdout=subprocess.DEVNULL, env=environment)
    clock = threading.Timer(limit, process.kill)
    clock.start()
    _, status, used = os.wait4(process.pid, 0)
    clock.cancel()
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode} after {seconds:.0f} s")
    # On Linux ru_maxrss is in KiB, and begins with that of this process, which is small.
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"processor_seconds": used.ru_utime + used.ru_stime, "seconds": seconds, "peak_memory_bytes": memory}


def compare(medians: Sequence[tuple[Mapping[str, Any], str, Mapping[str, float]]]) -> list[str]:
    """Sentences on each command of this checkout beside that of the other one."""
    sentences = []
    for point, way, numbers in medians:
        for other, name, earlier in medians:
            if other == point and name == f"{way}-before" and numbers and earlier:
                parts = [f"{numbers[key] / earlier[key]:.2f} × the {words}" for key, words in RATIOS.items()]
                sentences.append(f"{point['shape']}, {way}: {' and '.join(parts)} of the other checkout")
    return sentences


RATIOS = {"processor_seconds": "processor time", "peak_memory_bytes": "memory"}
GET = "git worktree add ../before COMMIT, and checkout=../before"
benchmark = Benchmark(
    question="What do the commands cost on a study of many trials?",
    ways=[
        Way("help", command("help"), role="limit"),
        *(Way(name, command(name), role="ours", rehearsals=1) for name in COMMANDS),
        *(
            Way(f"{name}-before", command(name, before=True), role="limit", path="checkout", get=GET)
            for name in COMMANDS
        ),
    ],
    options={"shape": ("25000x8", "20x10000"), "checkout": ("",), "limit": (900.0,)},
    quick={"shape": ("40x5",)},
    compared="processor_seconds",
    lower_is_better=True,
    reference="help",
    columns={
        "processor_seconds": "processor, s",
        "seconds": "seconds",
        "peak_memory_bytes": "memory, MB",
        "page_bytes": "page, MB",
    },
    along="shape",
    rounds=3,
    conclude=compare,
)
