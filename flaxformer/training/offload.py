"""Optimizer state in the memory of the host, from which each update reads it and to which it writes it back."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from flaxformer.devices.sharding import shardings_of
from flaxformer.system.errors import UserError
from flaxformer.training.run import Run

T = TypeVar("T", bound=PyTree)

HOST = "pinned_host"
"""JAX's name of the host's memory that a device reads directly."""


def to_host(run: Run, state: T) -> T:
    """Move arrays of an optimizer to the host's memory, under `Training.offload_optimizer`; counts stay."""
    return _move(state, is_host=True) if run.training.offload_optimizer else state


def to_device(run: Run, state: T) -> T:
    """Move arrays of an optimizer back to the device's memory, under `Training.offload_optimizer`."""
    return _move(state, is_host=False) if run.training.offload_optimizer else state


def _move(state: T, *, is_host: bool) -> T:
    space = jax.memory.Space.Host if is_host else jax.memory.Space.Device
    return jax.tree.map(lambda x: jax.device_put(x, space) if jnp.ndim(x) else x, state)


def host_shardings(run: Run, shardings: T, state: PyTree) -> T:
    """Return the shardings of an optimizer's state with the memory that `to_host` moves each array to."""
    if not run.training.offload_optimizer:
        return shardings

    def sharding(device_sharding: NamedSharding, leaf: Array) -> NamedSharding:
        return device_sharding.with_memory_kind(HOST) if leaf.ndim else device_sharding

    return jax.tree.map(sharding, shardings, state)


def state_shardings(run: Run, state: T, mesh: Mesh, is_stacked: bool = False) -> T:
    """Return the shardings of a training state on a mesh; the axis of a stack is not sharded."""
    alone = shardings_of(state, mesh)
    alone = alone.replace(optimizer=host_shardings(run, alone.optimizer, state.optimizer))
    if not is_stacked:
        return alone
    return jax.tree.map(lambda sharding: NamedSharding(mesh, PartitionSpec(None, *sharding.spec)), alone)


def check_offload(run: Run, devices: Sequence[jax.Device], is_stacked: bool) -> None:
    """Check that the devices can read the host's memory, and that runs are not computed together.

    Raises:
      UserError: they cannot, or they are.
    """
    if not run.training.offload_optimizer:
        return
    if is_stacked:
        raise UserError(
            "training.offload_optimizer is True in a study, which computes runs together; expected False, or "
            "`flaxformer train`"
        )
    for device in devices:
        kinds = [memory.kind for memory in device.addressable_memories()]
        if HOST not in kinds:
            raise UserError(
                f"training.offload_optimizer is True on {device}, whose memories are {', '.join(kinds)}; expected "
                f"False, or a device with {HOST}"
            )
