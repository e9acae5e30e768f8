"""Time from a command to its first training loss, beside PyTorch's first step and another checkout of flaxformer.

Command: flaxformer bench first_loss size=XS,S,M nanogpt=../nanoGPT checkout=../before
Work: `flaxformer train` as a user starts it, without and with (-cached) the programs of an earlier process, until it
    shows a training loss; then it is ended. A peer is a process that imports PyTorch, makes its model and optimizer,
    and takes one step; nothing else is read, shown or saved.
Measured: seconds, and processor seconds until then, user and system, which other work on the machine changes little.
Cost: per round, processes of 5 to 30 s.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sizes import SIZES

from flaxformer.bench import Benchmark, Way, Work, first_step

HERE = Path(__file__).resolve().parent
SHOWN = re.compile(r"training loss \d|step [\d,]+: loss \d")
"""The first loss of `train`; the second form is that of checkouts before it was shown by itself."""


def train(is_before: bool = False, is_cached: bool = False) -> Callable[[Work], dict[str, Any]]:
    """`flaxformer train` until it shows a training loss."""

    def measure(work: Work) -> dict[str, Any]:
        checkout = work.code(is_before)
        environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_ENABLE_COMPILATION_CACHE": str(is_cached).lower()}
        if is_cached:
            environment["JAX_COMPILATION_CACHE_DIR"] = str(work.scratch / "cache")
        file = work.scratch / "job.py"
        file.write_text(
            f"import sys\nsys.path.append({str(HERE)!r})\nfrom our_runs import run_of\nfrom sizes import SIZES\n"
            f"run = run_of(SIZES[{work['size']!r}], steps=200)\n"
        )
        output = tempfile.mkdtemp(dir=work.scratch)
        command = [sys.executable, "-u", "-m", "flaxformer.cli", "train", str(file), "--output", output]
        began, processor = time.perf_counter(), _processor_seconds()
        process = subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True, env=environment)
        with process:
            assert process.stdout is not None
            is_shown = any(SHOWN.search(line) for line in process.stdout)
            seconds = time.perf_counter() - began
            process.kill()
        if not is_shown:
            raise RuntimeError(f"'flaxformer train' ended after {seconds:.0f} s without a training loss")
        return {"first_step_seconds": seconds, "processor_seconds": _processor_seconds() - processor}

    return measure


def _processor_seconds() -> float:
    """Processor time of the processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peer(of: str) -> Callable[[Work], dict[str, Any]]:
    """A process that takes one step by PyTorch."""

    def measure(work: Work) -> dict[str, Any]:
        import torch_models

        build = torch_models.nanogpt(work["nanogpt"]) if of == "nanogpt" else torch_models.fused
        numbers = first_step(work, torch_models.trainer(SIZES[work["size"]], build))
        used = resource.getrusage(resource.RUSAGE_SELF)
        return numbers | {"processor_seconds": used.ru_utime + used.ru_stime}

    return measure


GET = "git worktree add ../before COMMIT, and checkout=../before"
benchmark = Benchmark(
    question="How long until a command shows its first training loss?",
    ways=[
        Way("train", train(), role="ours"),
        Way("train-cached", train(is_cached=True), role="ours", rehearsals=1),
        Way("before", train(True), role="limit", path="checkout", get=GET),
        Way("before-cached", train(True, True), role="limit", path="checkout", get=GET, rehearsals=1),
        Way("torch", peer("torch"), needs=["torch"], get="pip install torch"),
        Way(
            "nanogpt",
            peer("nanogpt"),
            needs=["torch"],
            path="nanogpt",
            get="git clone https://github.com/karpathy/nanoGPT; pip install torch",
        ),
    ],
    options={"size": ("S",), "nanogpt": ("",), "checkout": ("",)},
    quick={"size": ("tiny",)},
    choices={"size": ("tiny", "XS", "S", "M")},
    compared="first_step_seconds",
    lower_is_better=True,
    reference="torch",
    columns={"first_step_seconds": "first loss, s", "processor_seconds": "processor, s"},
    along="size",
    rounds=5,
)
