"""Several processes that train one run: all compute, and only the first reads and writes files and the terminal.

Every process runs the same program on the same config, and waits for the others wherever devices communicate. A
decision of one process (the checkpoint to resume from, a signal that it received) is therefore broadcast before any
process acts on it.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike

from flaxformer.system.errors import UserError

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
    if address is None and (processes, process) != (None, None):
        raise UserError(f"processes is {processes} and process {process} without a coordinator; expected HOST:PORT")
    if is_initialized() or (address is None and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2):
        return
    if address not in (None, "auto"):
        if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
            raise UserError(f"coordinator is '{address}'; expected HOST:PORT, or auto")
        if processes is None or process is None or not 0 <= process < processes:
            raise UserError(
                f"processes is {processes} and process {process}; expected the number of processes, and the number "
                "of this one, from 0"
            )
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


def run_on_coordinator(work: Callable[[], T]) -> T:
    """Call `work` in the first process alone, and return its result in all processes.

    Args:
      work: returns data that JSON can represent.

    Raises:
      UserError: the first process raised it, in all of them.
    """
    if jax.process_count() == 1:
        return work()
    outcome: dict[str, object] = {}
    error: BaseException | None = None
    if is_coordinator():
        try:
            outcome = {"value": work()}
        except BaseException as raised:
            error, outcome = raised, {"error": str(raised)}
    received = json.loads(_from_first(json.dumps(outcome).encode()))
    if error is not None:
        raise error
    if "error" in received:
        raise UserError(f"the first process stopped: {received['error']}")
    return received["value"]


def _from_first(data: bytes) -> bytes:
    size = int(broadcast(np.array(len(data), np.int32)))
    return broadcast(np.frombuffer(data.ljust(size)[:size], np.uint8)).tobytes()


def broadcast(array: np.ndarray) -> np.ndarray:
    """Return the first process's array, bit for bit, in all processes; the others pass one of its shape and dtype."""
    if jax.process_count() == 1:
        return array
    from jax.experimental import multihost_utils

    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # it is summed with zeros: -0.0 would not stay
    return np.asarray(multihost_utils.broadcast_one_to_all(data)).view(array.dtype).reshape(array.shape)


def all_reduce_max(number: int) -> int:
    """The maximum of a number over all processes."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.array(number, np.int32))))


def on_host(arrays: Sequence[ArrayLike]) -> list[np.ndarray]:
    """Copy arrays that are sharded over the devices of all processes to NumPy; every process must call this."""
    if jax.process_count() == 1:
        return list(jax.device_get(arrays))
    from jax.experimental import multihost_utils

    return [
        jax.device_get(array)
        if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        else multihost_utils.process_allgather(array, tiled=True)
        for array in arrays
    ]
