"""Worker processes on this machine, each with devices or cores of its own.

Every worker is pointed at all that is missing, and leases deal out the groups as they go: a worker that is fast takes
more of them, and one that dies leaves its group to the others. Where there are fewer groups than workers, each gets its
share of the trials instead.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import Console

from flaxformer.interrupts import raise_if_interrupted
from flaxformer.launchers.division import EVERYTHING, Jobs, Options, assign, shares
from flaxformer.launchers.payload import Payload
from flaxformer.launchers.work import DONE, FAILED
from flaxformer.struct import UserError
from flaxformer.study.plan import ProgramGroup

POLL = 0.2
"""Seconds between two looks at the workers."""


def divide(groups: list[ProgramGroup], options: Options) -> Jobs:
    """A job a worker.

    Raises:
      UserError: there are more workers than devices to give them.
    """
    devices, kind = places()
    workers = options.workers or len(devices)
    if workers > len(devices):
        raise UserError(f"workers is {workers}; expected at most {len(devices)}, the {kind} of this machine")
    return [EVERYTHING] * workers if len(groups) >= workers else assign(groups, workers)


def places() -> tuple[list[str], str]:
    """Return what is divided among workers, and its kind: GPUs that JAX can use, or cores.

    JAX is not asked: it would take the devices' memory for this process.
    """
    plugins = {plugin.name for plugin in entry_points(group="jax_plugins")}
    platforms = os.environ.get("JAX_PLATFORMS", "cuda").split(",")
    if any("cuda" in name for name in plugins) and {"cuda", "gpu"} & set(platforms):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = range(len(list(Path("/dev").glob("nvidia[0-9]*")))) if visible is None else visible.split(",")
        if gpus := [str(name) for name in found if str(name) not in ("", "-1")]:
            return gpus, "GPUs"
    return [str(core) for core in sorted(os.sched_getaffinity(0))], "cores"


def start(path: Path, payload: Payload, options: Options, console: Console) -> bool:
    """Run the workers to their end, their lines behind their number; one that dies is told, and the others go on."""
    devices, kind = places()
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for index, own in enumerate(shares(devices, len(payload.jobs))):
            processes.append(_worker(path, index, own, kind))
            readers.append(threading.Thread(target=_repeat, args=(processes[-1], index, console)))
            readers[-1].start()
        while any(process.poll() is None for process in processes):
            raise_if_interrupted()
            time.sleep(POLL)  # rather than a wait, which a signal that another thread got would not end
    finally:  # Ctrl-C, or SIGTERM: have them stop at their next chunk
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process, reader in zip(processes, readers, strict=True):
            process.wait()
            reader.join()
    for index, process in enumerate(processes):
        if process.returncode not in (DONE, FAILED):
            console.print(f"worker {index} {_ending(process.returncode)}; its runs are kept", style="red")
    return True


def _worker(path: Path, index: int, own: Sequence[str], kind: str) -> subprocess.Popen[str]:
    """One worker's process, with its devices."""
    words = [sys.executable, "-m", "flaxformer.launchers.worker", str(path), str(index)]
    environment = dict(os.environ)
    if kind == "GPUs":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    else:
        words += ["--cores", ",".join(own)]
    # A session of its own: Ctrl-C reaches this process alone, which asks the worker to stop, once.
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _repeat(process: subprocess.Popen[str], index: int, console: Console) -> None:
    with process.stdout as lines:  # type: ignore[union-attr]
        for line in lines:
            console.print(f"worker {index}: {line.rstrip()}", highlight=False, markup=False, soft_wrap=True)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
