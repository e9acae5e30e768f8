"""Worker processes on this machine, each with its own devices or cores.

All workers share the missing programs through leases: a fast worker trains more of them, and the program of a worker
that dies is taken over by another. With fewer programs than workers, each worker gets a share of the trials instead.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import Console

from flaxformer.runner.launchers.options import Options, Share, shares
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.interrupts import raise_if_interrupted

POLL = 0.2
"""Seconds between two checks of the workers."""
COLUMNS = "200"
"""Width of the lines of a worker."""


def divide(groups: list[ProgramGroup], options: Options) -> list[Share]:
    """Return the share of each worker.

    Raises:
      UserError: there are more workers than devices or cores.
    """
    devices, kind = places()
    workers = options.workers or len(devices)
    if workers > len(devices):
        raise UserError(f"workers is {workers}; expected at most {len(devices)}, the {kind} of this machine")
    return shares(1) * workers if len(groups) >= workers else shares(workers)


def places() -> tuple[list[str], str]:
    """Return the resources to divide among workers, and their kind: GPUs that JAX can use, or CPU cores.

    Starting JAX here would reserve the memory of the devices, so the system is queried instead.
    """
    plugins = {plugin.name for plugin in entry_points(group="jax_plugins")}
    platforms = os.environ.get("JAX_PLATFORMS", "cuda").split(",")
    if any("cuda" in name for name in plugins) and {"cuda", "gpu"} & set(platforms):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = range(len(list(Path("/dev").glob("nvidia[0-9]*")))) if visible is None else visible.split(",")
        if gpus := [str(name) for name in numbers if str(name) not in ("", "-1")]:
            return gpus, "GPUs"
    return [str(core) for core in sorted(os.sched_getaffinity(0))], "cores"


def start(words: Sequence[str], workers: list[Share], root: Path, options: Options, console: Console) -> bool:
    """Run all workers to their end and print their output, prefixed by their number; report those that die."""
    devices, kind = places()
    ends = [len(devices) * number // len(workers) for number in range(len(workers) + 1)]
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for index, share in enumerate(workers):
            processes.append(
                start_worker([*words, "--share", str(share)], devices[ends[index] : ends[index + 1]], kind)
            )
            readers.append(threading.Thread(target=_repeat, args=(processes[-1], index, console)))
            readers[-1].start()
        while any(process.poll() is None for process in processes):
            raise_if_interrupted()
            time.sleep(POLL)  # wait() would not end at a signal that another thread received
    finally:  # after Ctrl-C or SIGTERM: stop them at their next chunk
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process, reader in zip(processes, readers, strict=True):
            process.wait()
            reader.join()
    for index, process in enumerate(processes):
        if process.returncode not in (0, 1):  # done, or done with failed runs
            console.print(f"worker {index} {_ending(process.returncode)}; its runs are kept", style="red")
    return True


def start_worker(words: Sequence[str], devices: Sequence[str], kind: str) -> subprocess.Popen[str]:
    """Start `flaxformer run` with these words, on these devices or cores."""
    environment = os.environ | {"COLUMNS": COLUMNS}
    if kind == "GPUs":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    with _cores(devices) if kind == "cores" else contextlib.nullcontext():
        # In a session of its own, so that Ctrl-C reaches only this process, which then stops the worker once.
        return subprocess.Popen(
            [sys.executable, "-m", "flaxformer.cli", "run", *words],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip


@contextlib.contextmanager
def _cores(numbers: Sequence[str]) -> Iterator[None]:
    """Let processes that this thread starts inside the `with` block use these CPU cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, map(int, numbers))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _repeat(process: subprocess.Popen[str], index: int, console: Console) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            console.print(f"worker {index}: {line.rstrip()}", soft_wrap=True)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
