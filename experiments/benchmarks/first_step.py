"""Time to the first training step, against another checkout of flaxformer, such as an earlier commit.

Command: git worktree add ../before COMMIT; flaxformer bench first_step checkout=../before
Work: a process that imports the package, starts a run of size S at a depth on one device and trains a step, by the code
    of each checkout; without a cache of compiled programs, or (-cached) with that of an earlier process. (-train): the
    command `flaxformer train` for one step, with an evaluation of one batch before and after it, and its checkpoint.
Measured: processor seconds, user and system, which other work on the machine changes little; seconds; peak memory.
Cost: per round, processes of 5 to 60 s; with cached programs, a third of that.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer.bench import Benchmark, Way, Work

HERE = Path(__file__).resolve()


def start(is_before: bool = False, is_cached: bool = False, trains: bool = False) -> Callable[[Work], dict[str, Any]]:
    """A process to its first step, by this checkout or the other."""

    def measure(work: Work) -> dict[str, Any]:
        checkout, words = work.code(is_before), [str(HERE), work["size"], str(work["depth"])]
        environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_ENABLE_COMPILATION_CACHE": str(is_cached).lower()}
        if is_cached:
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": str(work.scratch / "cache"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
        if trains:
            words = train_command(work)
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], cwd=checkout, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{HERE.name} ended with {process.returncode} after {seconds:.0f} s")
        # On Linux ru_maxrss is in KiB.
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {"processor_seconds": used.ru_utime + used.ru_stime, "seconds": seconds, "peak_memory_bytes": memory}

    return measure


def train_command(work: Work) -> list[str]:
    """The words of `flaxformer train` for one step, in an empty folder."""
    file = work.scratch / "job.py"
    file.write_text(
        f"import dataclasses, sys\nsys.path.append({str(HERE.parent)!r})\n"
        "from our_runs import run_of\nfrom sizes import SIZES\n"
        f"run = run_of(dataclasses.replace(SIZES[{work['size']!r}], layers={work['depth']}), steps=1)\n"
    )
    output = tempfile.mkdtemp(dir=work.scratch)
    options = ["--output", output, "--samples", "0", "--mesh", "data=1"]
    return ["-m", "flaxformer.cli", "train", str(file), "task.evaluation_batches=1", *options]


def train_a_step(size: str, depth: int) -> None:
    """Start a run and train its first step."""
    import jax
    from our_runs import run_of, trainer
    from sizes import SIZES

    jax.block_until_ready(trainer(run_of(dataclasses.replace(SIZES[size], layers=depth)), 1)())


def compare(medians: Sequence[tuple[Mapping[str, Any], str, Mapping[str, float]]]) -> list[str]:
    """Sentences on the deepest model beside the second deepest, by each way."""
    sentences = []
    for way in dict.fromkeys(way for _, way, _ in medians):
        own = sorted((point["depth"], numbers["processor_seconds"]) for point, name, numbers in medians if name == way)
        if len(own) > 1:
            (shallow, less), (deep, more) = own[-2:]
            sentences.append(f"{way}: {deep} layers take {more / less:.2f} × the processor time of {shallow}")
    return sentences


GET = "git worktree add ../before COMMIT, and checkout=../before"
benchmark = Benchmark(
    question="How long until the first training step is done, and how long was it in another checkout?",
    ways=[
        Way("before", start(is_before=True), role="limit", path="checkout", get=GET),
        Way("now", start(), role="ours"),
        Way("before-train", start(True, trains=True), role="limit", path="checkout", get=GET),
        Way("now-train", start(trains=True), role="ours"),
        Way("before-cached", start(True, is_cached=True), role="limit", path="checkout", get=GET, rehearsals=1),
        Way("now-cached", start(is_cached=True), role="ours", rehearsals=1),
    ],
    options={"depth": (4, 12, 48), "size": ("S",), "checkout": ("",)},
    quick={"depth": (1,), "size": ("tiny",)},
    choices={"size": ("tiny", "XS", "S", "M")},
    compared="processor_seconds",
    lower_is_better=True,
    reference="before",
    columns={"processor_seconds": "processor, s", "seconds": "seconds", "peak_memory_bytes": "memory, MB"},
    along="depth",
    rounds=5,
    conclude=compare,
)

if __name__ == "__main__":
    train_a_step(sys.argv[1], int(sys.argv[2]))
