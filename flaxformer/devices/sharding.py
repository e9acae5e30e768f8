"""Sharding of a run's arrays: a mesh of devices, and one table from the axes of weights to the axes of the mesh.

The axes of a weight are named where it is declared, and the table shards every weight, and every moment of the
optimizer, along them. If two axes of a weight map to one axis of the mesh, only the first is sharded and the second is
replicated (`replicated_axes` lists them). The functions of the model and of the training step are the same on one
device and on many; the compiler inserts the communication (Xu et al. 2021, "GSPMD"):

>>> mesh = Devices(data=2, fsdp=2, tensor=2).mesh()
>>> shardings = shardings_of(jax.eval_shape(start, run), mesh)
>>> with jax.set_mesh(mesh):
...     state = jax.jit(start, out_shardings=shardings)(run)

| axis | sharded along it | source |
|---|---|---|
| data | the batch | |
| fsdp | the batch; weights and moments, gathered where a weight is used | Rajbhandari et al. 2020, "ZeRO" |
| tensor | experts, heads, d_ff, vocabulary: columns, then rows of a product | Shoeybi et al. 2019, "Megatron-LM" |
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, PyTree

from flaxformer.core.params import Parameters, ParametersT, path_name
from flaxformer.core.weight_axes import Axes, axes
from flaxformer.system.errors import UserError
from flaxformer.system.settings import mesh_sizes
from flaxformer.system.startup import two_threads_per_cpu_device

T = TypeVar("T")
SharedT = TypeVar("SharedT")
RowsT = TypeVar("RowsT")

two_threads_per_cpu_device()  # read when JAX starts, which is usually after this import

RULES = {
    "experts": "tensor",
    "heads": "tensor",
    "key_value_heads": "tensor",
    "d_ff": "tensor",
    "d_hidden": "tensor",
    "vocabulary": "tensor",
    "outputs": "tensor",
    "d_model": "fsdp",
    "d_embedding": "fsdp",
    "d_memory": "fsdp",
    "d_source": "fsdp",
    "d_norm": "fsdp",
    "d_state": "fsdp",
}
"""Axis of the mesh for each axis of a weight; axes that it does not divide, or that are absent, are replicated."""
BATCH = PartitionSpec(("data", "fsdp"))
"""Partition of the leading axis of a batch."""


@dataclasses.dataclass(frozen=True)
class Devices:
    """Number of devices along each axis of the mesh."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise UserError(f"mesh is {self}: {name} is {value}; expected at least 1")

    def __str__(self) -> str:
        return ",".join(f"{name}={count}" for name, count in dataclasses.asdict(self).items())

    @property
    def count(self) -> int:
        """Devices in all."""
        return math.prod(dataclasses.astuple(self))

    @property
    def batch(self) -> int:
        """Number of parts that a batch is sharded into."""
        return self.data * self.fsdp

    def mesh(self) -> Mesh:
        """The mesh, of the first devices of this process, or of all devices of several processes.

        Raises:
          UserError: there are not so many devices, or more in several processes.
        """
        two_threads_per_cpu_device()
        devices, several = jax.devices(), jax.process_count() > 1
        if self.count > len(devices) or (several and self.count < len(devices)):
            where = f"{jax.process_count()} processes have" if several else "this machine has"
            expected = f"{'' if several else 'at most '}{len(devices)} devices, which {where}"
            raise UserError(f"mesh is {self}, {self.count} devices; expected {expected}")
        return self.mesh_of(devices[: self.count])

    def mesh_of(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh of these devices, as many as `count`."""
        shape = dataclasses.asdict(self)
        return jax.make_mesh(tuple(shape.values()), tuple(shape), (AxisType.Auto,) * len(shape), devices=devices)


def parse_devices(text: str) -> Devices:
    """The devices that a text such as "data=2,tensor=4" names.

    Raises:
      UserError: it names another axis, one twice, or what is not a positive number.
    """
    return Devices(**mesh_sizes(text))


def weight_spec(weight_axes: Axes, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Return the partition of a weight by `RULES`.

    If two axes of the weight map to one axis of the mesh, only the first that it divides is sharded.
    """
    spec: list[str | None] = []
    for name, size in zip(weight_axes.names, shape, strict=True):
        along = RULES.get(name)
        spec.append(along if along is not None and along not in spec and size % mesh.shape[along] == 0 else None)
    return PartitionSpec(*spec)


def replicated_axes(params: Parameters, mesh: Mesh | AbstractMesh) -> list[str]:
    """The axes of weights that are replicated because another axis of the weight is sharded along their mesh axis.

    Returns:
      lines such as "attention/key: d_source, since d_model is sharded along fsdp", each once for all layers.
    """
    lines: dict[str, None] = {}
    named = jax.tree_util.tree_leaves_with_path(axes(params), is_leaf=lambda node: isinstance(node, Axes))
    for (path, weight_axes), leaf in zip(named, jax.tree.leaves(params), strict=True):
        spec = weight_spec(weight_axes, leaf.shape, mesh)
        for name, along in zip(weight_axes.names, spec, strict=True):
            rule = RULES.get(name)
            if rule is not None and along is None and rule in spec and mesh.shape[rule] > 1:
                weight = "/".join(part for part in path_name(path).split("/") if not part.isdigit())
                lines[f"{weight}: {name}, since {weight_axes.names[spec.index(rule)]} is sharded along {rule}"] = None
    return list(lines)


def shardings_of(tree: PyTree, mesh: Mesh) -> PyTree[NamedSharding]:
    """A tree like a state (of arrays, or of their shapes), with the sharding of each array in it.

    An array of an optimizer is sharded as its weight is, if it has the weight's axes. All others are replicated.
    """
    replicated_sharding = replicated(mesh)

    def sharding(weight_axes: Axes, leaf: Array) -> NamedSharding:
        same_axes = len(weight_axes.names) == len(leaf.shape)
        return NamedSharding(mesh, weight_spec(weight_axes, leaf.shape, mesh)) if same_axes else replicated_sharding

    def node(subtree: PyTree) -> PyTree[NamedSharding]:
        if not isinstance(subtree, Parameters):
            return replicated_sharding
        # In a weight's place an optimizer may have no array, or several.
        return jax.tree.map(
            lambda weight_axes, leaf: jax.tree.map(functools.partial(sharding, weight_axes), leaf),
            axes(subtree),
            subtree,
        )

    return jax.tree.map(node, tree, is_leaf=lambda subtree: isinstance(subtree, Parameters))


def cuts_batch_alone() -> bool:
    """True if this is traced within a mesh that has several devices along data and nowhere else."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and 1 < mesh.shape.get("data", 1) == mesh.size


def batch_shards(rows: int = 0) -> int:
    """Number of parts, along data and fsdp, into which the mesh divides a batch of as many rows where this is traced.

    It is 1 without a mesh, within `shard_map`, and for rows that the mesh does not divide.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not set(mesh.axis_types) <= {AxisType.Auto}:
        return 1
    shards = int(mesh.shape.get("data", 1) * mesh.shape.get("fsdp", 1))
    return shards if rows % shards == 0 else 1


def shard_leading(x: Array, spec: PartitionSpec) -> Array:
    """Shard an array [shards, ...], one per part of the batch; `spec` is that of a weight with the other axes."""
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*BATCH, *_gathered_spec(spec)))


def reduce_scatter(x: Array, spec: PartitionSpec) -> Array:
    """Return the sum over the first axis of an array as `shard_leading` gives it, with the sharding `spec`."""

    def of_device(block: Array) -> Array:
        total = block[0]
        for along in BATCH[0]:
            is_cut = along == "fsdp" and along in spec
            place = spec.index(along) if is_cut else 0
            total = (
                jax.lax.psum_scatter(total, along, scatter_dimension=place, tiled=True)
                if is_cut
                else jax.lax.psum(total, along)
            )
        return total

    mapped = jax.shard_map(
        of_device, in_specs=PartitionSpec(*BATCH, *_gathered_spec(spec)), out_specs=spec, check_vma=False
    )
    return mapped(x)


def _gathered_spec(spec: PartitionSpec) -> PartitionSpec:
    """Return the partition of a weight after it is gathered along fsdp."""
    return PartitionSpec(*(None if along == "fsdp" else along for along in spec))


def mesh_for_rows(rows: int) -> AbstractMesh | None:
    """The mesh within which this is called, if each of its devices can compute as many of the rows for itself."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if cuts_batch_alone() and rows % mesh.size == 0 else None


def shard_map_batch(
    function: Callable[[SharedT, RowsT], T], shared: SharedT, rows: RowsT, mesh: AbstractMesh | None
) -> T:
    """`function(shared, rows)`, in which no row depends on another: each device computes its part of the rows.

    Each device has all of `shared`, and the rows are divided along their leading axis. Nothing is exchanged
    between devices, not even within loops. Without a mesh, it is one call.
    """
    if mesh is None:
        return function(shared, rows)
    batch_spec = PartitionSpec("data")
    return jax.shard_map(
        function, mesh=mesh, in_specs=(PartitionSpec(), batch_spec), out_specs=batch_spec, check_vma=False
    )(shared, rows)


def all_gather_fsdp(params: ParametersT) -> ParametersT:
    """All-gather the weights along fsdp; the backward pass reduces and scatters their gradients.

    Stacked layers stay sharded, so that each layer is gathered when it is used. Without a mesh, nothing changes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get("fsdp", 1) == 1:
        return params

    def gather(weight_axes: Axes, leaf: Array) -> Array:
        sharded = weight_spec(weight_axes, leaf.shape, mesh)
        return leaf if weight_axes.in_layer or "fsdp" not in sharded else _all_gather(leaf, sharded)

    return jax.tree.map(gather, axes(params), params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _all_gather(x: Array, sharded: PartitionSpec) -> Array:
    """All-gather x along fsdp; its gradient is sharded as x is, so that it is reduced and scattered, not all-reduced.

    x has this sharding before it is gathered. Otherwise, the compiler may gather the weight before it is cast.
    """
    x = jax.lax.with_sharding_constraint(x, sharded)
    return jax.lax.with_sharding_constraint(x, _gathered_spec(sharded))


_all_gather.defvjp(
    lambda x, sharded: (_all_gather(x, sharded), None),
    lambda sharded, _, gradient: (jax.lax.with_sharding_constraint(gradient, sharded),),
)


def device_put_global(tree: T, shardings: PyTree[NamedSharding]) -> T:
    """Put arrays that every process holds in full on the devices of all processes; a sharding may stand for a tree."""

    def put(sharding: NamedSharding, subtree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: from_process_local(np.asarray(leaf), sharding), subtree)

    return jax.tree.map(put, shardings, tree)


def from_process_local(array: np.ndarray, sharding: Sharding) -> Array:
    """Put an array that every process holds in full on the devices of all processes."""
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array of which every device has a copy."""
    return NamedSharding(mesh, PartitionSpec())
