"""Bound on the calls of compiled programs that wait on a mesh of CPU devices."""

import itertools
from typing import TypeVar

import jax
from jax.sharding import Mesh

T = TypeVar("T")

MOST_CALLS = 16
"""Calls in flight on a CPU mesh. From about 32 on, the queue of a device is full, and all-reduces of several calls can
wait for each other without end; XLA then ends the process."""
_CALLS = itertools.count(1)  # of the whole process, since programs of several runs share the devices


def wait_every_few_calls(results: T, mesh: Mesh | None) -> T:
    """Return the results of a call; on a CPU mesh, wait for those of every 16th call of this process."""
    if mesh is not None and mesh.devices.flat[0].platform == "cpu" and next(_CALLS) % MOST_CALLS == 0:
        jax.block_until_ready(results)
    return results
