"""Several processes that train one run: all compute and write their part of checkpoints; the first does all else.

The first process reads and writes all other files and the terminal.

Every process runs the same program on the same config, and waits for the others wherever devices communicate. A
decision of one process (the checkpoint to resume from, a signal that it received) is therefore broadcast before any
process acts on it.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import jax
import numpy as np

from flaxformer.system.errors import UserError
from flaxformer.system.settings import check_processes

T = TypeVar("T")
TIMEOUT = 300
"""Seconds that a process waits for the others to start."""


def initialize(address: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Connect the processes of this run, before JAX initializes its devices; for a single process, do nothing.

    A second call does nothing either.

    Without arguments, the tasks of one `srun` are connected if there are several. On a node that runs one task, that
    task has all devices of the node.

    Args:
      address: HOST:PORT, where the first process listens; "auto" lets JAX find it (Cloud TPU, MPI, Kubernetes).
      processes: number of processes.
      process: number of this process, from 0.

    Raises:
      UserError: a malformed address, or one of the three without the others.
    """
    check_processes(address, processes, process)
    if is_initialized() or (address is None and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2):
        return
    # Two programs that run at once on a CPU would mix up the messages of their processes.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_preemption_service", False)  # it would replace our handler of SIGTERM
    jax.distributed.initialize(
        None if address == "auto" else address,
        processes,
        process,
        local_device_ids=_slurm_devices(),
        initialization_timeout=TIMEOUT,
    )


def _slurm_devices() -> list[int] | None:
    """Return all GPUs of a node where SLURM runs one task per node, since JAX would take only the first; else None."""
    tasks, gpus = os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""), os.environ.get("SLURM_GPUS_ON_NODE", "")
    return list(range(int(gpus))) if re.fullmatch(r"1(\(x\d+\))?", tasks) and gpus.isdecimal() else None


def is_initialized() -> bool:
    """True if this process is connected with others."""
    return jax.distributed.is_initialized()


def is_coordinator() -> bool:
    """True if this is the first process, or the only one."""
    return jax.process_index() == 0


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """Processes that act together: all of them call the same functions in the same order."""

    index: int
    """Number of this process."""
    count: int
    gather: Callable[[str], list[str]]
    """Exchange a text with the others, and return those of all in their order."""

    def run(self, work: Callable[[], T]) -> list[T]:
        """Call `work` in every process, and return the results of all.

        Args:
          work: returns data that JSON can represent.

        Raises:
          UserError: `work` raised an exception in another process; one of its own is raised as it is.
        """
        if self.count == 1:
            return [work()]
        outcome: dict[str, object] = {}
        error: BaseException | None = None
        try:
            outcome = {"value": work()}
        except BaseException as raised:
            error, outcome = raised, {"error": str(raised)}
        received = [json.loads(text) for text in self.gather(json.dumps(outcome))]
        if error is not None:
            raise error
        for number, other in enumerate(received):
            if "error" in other:
                name = "the first process" if number == 0 else f"process {number}"
                raise UserError(f"{name} stopped: {other['error']}")
        return [other["value"] for other in received]

    def run_first(self, work: Callable[[], T]) -> T:
        """Call `work` in the first process alone, and return its result in all; see `run`."""
        return cast(T, self.run(lambda: work() if self.index == 0 else None)[0])

    def share(self, items: Iterable[T]) -> list[T]:
        """Return the items that fall to this process, where each falls to one."""
        return list(items)[self.index :: self.count]


ALONE = ProcessGroup(0, 1, lambda text: [text])
"""This process by itself."""


def all_processes() -> ProcessGroup:
    """Return all processes of this run, which exchange texts by their devices, in the thread that trains."""
    return ProcessGroup(jax.process_index(), jax.process_count(), _gather)


def run_on_coordinator(work: Callable[[], T]) -> T:
    """Call `work` in the first process alone, and return its result in all processes; see `ProcessGroup.run`."""
    return all_processes().run_first(work)


def _gather(text: str) -> list[str]:
    from jax.experimental import multihost_utils

    data = text.encode()
    sizes = multihost_utils.process_allgather(np.array(len(data), np.int32))
    rows = multihost_utils.process_allgather(np.frombuffer(data.ljust(int(max(sizes))), np.uint8))
    return [np.asarray(row).tobytes()[:size].decode() for row, size in zip(rows, sizes, strict=True)]


def all_reduce_max(number: int) -> int:
    """The maximum of a number over all processes."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.array(number, np.int32))))
