"""Several processes, one run: all compute, and the first alone touches the disk and the terminal.

Every process runs the same program on the same config and meets the others wherever devices exchange numbers, so that
what one decides (a checkpoint to go on from, a signal that came), all have to learn before they act on it.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from flaxformer.struct import UserError

TIMEOUT = 300
"""Seconds that a process waits for the others to start."""


def initialize(address: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the processes of this run, before JAX looks for devices; alone, do nothing.

    With none given, the tasks of one `srun` join, if they are several. On a node that runs one task, that task has all
    the node's devices.

    Args:
      address: HOST:PORT, where the first process listens; "auto" has JAX find out (Cloud TPU, MPI, Kubernetes).
      processes: how many there are.
      process: which this one is, from 0.

    Raises:
      UserError: an address that is none, or a number without the others.
    """
    if address is None and (processes, process) != (None, None):
        raise UserError(f"processes is {processes} and process {process} without a coordinator; expected HOST:PORT")
    if address is None and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    if address not in (None, "auto"):
        if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
            raise UserError(f"coordinator is '{address}'; expected HOST:PORT, or auto")
        if processes is None or process is None or not 0 <= process < processes:
            raise UserError(
                f"processes is {processes} and process {process}; expected how many there are, and which this one is, "
                "counted from 0"
            )
    # Two programs under way at once on a CPU would mix up what their processes tell each other.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from who listens to it here
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


def is_coordinator() -> bool:
    """True if this process is the one that writes; a lone one is."""
    return jax.process_index() == 0


def run_on_coordinator(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in the first process, in all of them; it runs there alone.

    Args:
      work: returns what JSON can hold.

    Raises:
      UserError: the first process raised it, in all of them.
    """
    if jax.process_count() == 1:
        return work()
    outcome: dict[str, Any] = {}
    error: BaseException | None = None
    if is_coordinator():
        try:
            outcome = {"value": work()}
        except BaseException as raised:
            error, outcome = raised, {"error": str(raised)}
    outcome = json.loads(_from_first(json.dumps(outcome).encode()))
    if error is not None:
        raise error
    if "error" in outcome:
        raise UserError(f"the first process stopped: {outcome['error']}")
    return outcome["value"]


def _from_first(data: bytes) -> bytes:
    size = int(broadcast(np.array(len(data), np.int32)))
    return broadcast(np.frombuffer(data.ljust(size)[:size], np.uint8)).tobytes()


def broadcast(array: np.ndarray) -> np.ndarray:
    """The first process's array, bit for bit, in all of them; the others give one of its shape and dtype."""
    if jax.process_count() == 1:
        return array
    from jax.experimental import multihost_utils

    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # it is summed with zeros: -0.0 would not stay
    return np.asarray(multihost_utils.broadcast_one_to_all(data)).view(array.dtype).reshape(array.shape)


def all_reduce_max(number: int) -> int:
    """The highest of the numbers of all processes."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.array(number, np.int32))))


def on_host(arrays: Sequence[Any]) -> list[Any]:
    """Arrays that lie on the devices of all processes, as NumPy's; every process has to ask for them."""
    if jax.process_count() == 1:
        return list(jax.device_get(arrays))
    from jax.experimental import multihost_utils

    return [
        jax.device_get(array)
        if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        else multihost_utils.process_allgather(array, tiled=True)
        for array in arrays
    ]
