"""Copies of a state's leaves in host memory: whole ones, or the shards of this process where several share an array.

An array that lies on the devices of several processes is copied to the host memory of one device per process and
shard. So each process holds what its devices hold, each shard once, and Orbax writes and reads it as it lies there.
"""

import operator
from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.typing import ArrayLike
from jaxtyping import PyTree

from flaxformer.checkpoint.leaves import as_bytes, describe_leaf, is_key, key_generator, stored_names

TreeT = TypeVar("TreeT")
HostArray = np.ndarray | jax.Array
"""A whole array; or the shards that this process has of one that several processes share."""
Region = tuple[tuple[int, int], ...]
"""First index and end of a part of an array along each axis."""


def copy_to_host(tree: PyTree) -> dict[str, HostArray]:
    """Return a copy of every leaf by its name on disk, independent of later changes to the tree."""
    leaves = jax.tree.leaves(tree)
    words = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]
    shardings = [_host_sharding(leaf) for leaf in words]
    shards = [_shards_on(leaf, sharding) for leaf, sharding in zip(words, shardings, strict=True)]
    # np.asarray would return a view on a CPU, and would block signals until the device has finished.
    copies = jax.tree.map(np.array, jax.device_get([list(parts.values()) for parts in shards]))
    arrays = {}
    for name, index, layer in stored_names(tree):
        parts = dict(zip(shards[index], copies[index], strict=True))
        shape = np.shape(words[index])
        if layer is not None:
            parts, shape = {device: part[layer, ...] for device, part in parts.items()}, shape[1:]
        arrays[name] = _join(parts, shape, _of_layer(shardings[index], layer))
    return arrays


def host_shardings(like: PyTree) -> dict[str, Sharding | None]:
    """Return by name on disk how `copy_to_host` divides each leaf of a tree; None for one that it copies whole.

    Leaves are arrays or `jax.ShapeDtypeStruct`s.
    """
    shardings = [_host_sharding(leaf) for leaf in jax.tree.leaves(like)]
    return {name: _of_layer(shardings[index], layer) for name, index, layer in stored_names(like)}


def copy_from_host(like: TreeT, arrays: Mapping[str, HostArray]) -> TreeT:
    """Return the tree that `copy_to_host` copied, with the structure, layout and devices of `like`."""
    leaves, structure = jax.tree.flatten(like)
    layers: list[list[dict[Region, np.ndarray]]] = [[] for _ in leaves]
    is_stacked = [False] * len(leaves)
    for name, index, layer in stored_names(like):
        layers[index].append(regions(arrays[name]))
        is_stacked[index] = layer is not None
    restored = []
    for leaf, parts, stacked in zip(leaves, layers, is_stacked, strict=True):
        depth = ((0, len(parts)),) if stacked else ()
        join = np.stack if stacked else operator.itemgetter(0)
        restored.append(_put_like({(*depth, *at): join([part[at] for part in parts]) for at in parts[0]}, leaf))
    return jax.tree.unflatten(structure, restored)


def sharding_of(array: HostArray) -> Sharding | None:
    """Return how several processes divide an array; None for a whole one."""
    return array.sharding if isinstance(array, jax.Array) else None


def regions(array: HostArray) -> dict[Region, np.ndarray]:
    """Return the parts of an array that this process holds."""
    if not isinstance(array, jax.Array):
        return {tuple((0, size) for size in array.shape): array}
    return {_region(shard.index, array.shape): np.asarray(shard.data) for shard in array.addressable_shards}


def has_same_bits(array: HostArray, other: HostArray) -> bool:
    """True if two arrays of one sharding are equal bit for bit in this process."""
    parts, other_parts = regions(array), regions(other)
    return (
        array.dtype == other.dtype
        and parts.keys() == other_parts.keys()
        and all(np.array_equal(as_bytes(part), as_bytes(other_parts[at])) for at, part in parts.items())
    )


def _host_sharding(leaf: ArrayLike | jax.ShapeDtypeStruct) -> Sharding | None:
    """Return the sharding of the host copy of an array on devices of several processes; None for any other."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else None
    if sharding is None or sharding.is_fully_addressable:
        return None
    shape = describe_leaf(leaf).shape
    devices: dict[Region, dict[int, jax.Device]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        devices.setdefault(_region(index, shape), {}).setdefault(device.process_index, device)
    rows = [list(devices[region].values()) for region in sorted(devices)]
    if len({len(row) for row in rows}) > 1:  # a mesh whose axes cross the processes unevenly
        return sharding
    counts = [len({region[axis] for region in devices}) for axis in range(len(shape))]
    names = [f"axis {axis}" for axis in range(len(shape))]
    mesh = Mesh(np.array(rows).reshape(*counts, -1), (*names, "process"))
    memory = None if rows[0][0].platform == "cpu" else "pinned_host"
    return NamedSharding(mesh, PartitionSpec(*names), memory_kind=memory)


def _of_layer(sharding: Sharding | None, layer: int | None) -> Sharding | None:
    """Return the sharding of one layer of a stack, whose leading axis is not divided."""
    if layer is None or not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]), memory_kind=sharding.memory_kind)


def _shards_on(leaf: ArrayLike, sharding: Sharding | None) -> dict[jax.Device | None, ArrayLike]:
    """Return the shards of a leaf that lie on the devices of a sharding; without a sharding, the leaf."""
    if sharding is None or not isinstance(leaf, jax.Array):
        return {None: leaf}
    return {shard.device: shard.data for shard in leaf.addressable_shards if shard.device in sharding.device_set}


def _join(
    parts: Mapping[jax.Device | None, np.ndarray], shape: tuple[int, ...], sharding: Sharding | None
) -> HostArray:
    """Return an array of several processes with these parts on the devices of this one; or a part that is whole."""
    if sharding is None:
        return parts[None]
    placed = [
        jax.device_put(part, SingleDeviceSharding(device, memory_kind=sharding.memory_kind))
        for device, part in parts.items()
        if device is not None
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def _region(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> Region:
    return tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))


def _put_like(parts: Mapping[Region, np.ndarray], like: ArrayLike | jax.ShapeDtypeStruct) -> HostArray:
    """Return an array in the form of a leaf: as a random key, on the leaf's devices, or on the host."""
    whole = next(iter(parts.values()))
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return whole
    if like.sharding is not None and not like.sharding.is_fully_addressable:
        shape = describe_leaf(like).shape
        value = jax.make_array_from_callback(shape, like.sharding, lambda index: _part(parts, _region(index, shape)))
        return jax.random.wrap_key_data(value, impl=key_generator(like)) if is_key(like) else value
    local = jax.random.wrap_key_data(jnp.asarray(whole), impl=key_generator(like)) if is_key(like) else whole
    # An uncommitted array must stay uncommitted, or it could not be combined with arrays on other devices.
    is_committed = like.committed if isinstance(like, jax.Array) else True
    return jax.device_put(local, like.sharding if is_committed else None)


def _part(parts: Mapping[Region, np.ndarray], region: Region) -> np.ndarray:
    """Return a part, or the cut of a whole array."""
    if region in parts:
        return parts[region]
    return next(iter(parts.values()))[tuple(slice(*bounds) for bounds in region)]
