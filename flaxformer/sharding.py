"""Placement of a run's arrays: a mesh of devices, and one table from the names of axes to the axes of the mesh.

A weight's axes are named where it is declared, so that the table decides for every weight, and for every moment of the
optimizer, along which axis it is cut. The functions of the model and of the training step are the same on one device
and on many; the compiler inserts what the devices have to tell each other (Xu et al. 2021, "GSPMD"):

>>> mesh = Devices(data=2, fsdp=2, tensor=2).mesh()
>>> shardings = shardings_of(jax.eval_shape(start, run), mesh)
>>> with jax.set_mesh(mesh):
...     state = jax.jit(start, out_shardings=shardings)(run)

| axis | cut along it | source |
|---|---|---|
| data | the batch | |
| fsdp | the batch; weights and moments: a weight is gathered where it is used | Rajbhandari et al. 2020, "ZeRO" |
| tensor | heads, d_ff, vocabulary: columns of one product, rows of the next | Shoeybi et al. 2019, "Megatron-LM" |
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from flaxformer.params import Parameters, ParametersT
from flaxformer.struct import UserError
from flaxformer.weight_axes import Axes, axes

T = TypeVar("T")

RULES = {
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
"""Along which axis of the mesh an axis of a weight is cut; one that is not divisible, or not named here, is whole."""
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
        """Parts that a batch is cut into."""
        return self.data * self.fsdp

    def mesh(self) -> Mesh:
        """The mesh, of the first devices of this process, or of all devices of several processes.

        Raises:
          UserError: there are not so many devices, or more in several processes.
        """
        found, several = jax.devices(), jax.process_count() > 1
        if self.count > len(found) or (several and self.count < len(found)):
            where = f"{jax.process_count()} processes have" if several else "this machine has"
            expected = f"{'' if several else 'at most '}{len(found)} devices, which {where}"
            raise UserError(f"mesh is {self}, {self.count} devices; expected {expected}")
        return self.mesh_of(found[: self.count])

    def mesh_of(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh of these devices, as many as `count`."""
        shape = dataclasses.asdict(self)
        return jax.make_mesh(tuple(shape.values()), tuple(shape), (AxisType.Auto,) * len(shape), devices=devices)


def parse_devices(text: str) -> Devices:
    """The devices that a text such as "data=2,tensor=4" names.

    Raises:
      UserError: it names another axis, one twice, or what is no number.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(data|fsdp|tensor)\s*=\s*(\d+)\s*", part)
        if match is None or match[1] in found:
            raise UserError(f"mesh is '{text}'; expected devices along data, fsdp and tensor, such as data=4,tensor=2")
        found[match[1]] = int(match[2])
    return Devices(**found)


def weight_spec(own: Axes, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    """Return a weight's partition: each axis by `RULES`; if two map to the same axis of the mesh, only the first."""
    spec: list[str | None] = []
    for name, size in zip(own.names, shape, strict=True):
        along = RULES.get(name)
        spec.append(along if along is not None and along not in spec and size % mesh.shape[along] == 0 else None)
    return PartitionSpec(*spec)


def shardings_of(tree: Any, mesh: Mesh) -> Any:
    """A tree like a state (of arrays, or of their shapes), with the sharding of each array in it.

    What an optimizer keeps for each weight lies as the weight does, if it has the weight's axes. All else is whole.
    """
    whole = replicated(mesh)

    def cut(own: Axes, leaf: Any) -> NamedSharding:
        alike = len(own.names) == len(leaf.shape)
        return NamedSharding(mesh, weight_spec(own, leaf.shape, mesh)) if alike else whole

    def node(found: Any) -> Any:
        if not isinstance(found, Parameters):
            return whole
        # In a weight's place an optimizer may keep nothing, or several arrays.
        return jax.tree.map(lambda own, kept: jax.tree.map(functools.partial(cut, own), kept), axes(found), found)

    return jax.tree.map(node, tree, is_leaf=lambda found: isinstance(found, Parameters))


def cuts_batch_alone() -> bool:
    """True if this is traced within a mesh that has several devices along data and nowhere else."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and 1 < mesh.shape.get("data", 1) == mesh.size


def mesh_for_rows(rows: int) -> Mesh | None:
    """The mesh within which this is called, if each of its devices can compute as many of the rows for itself."""
    mesh = jax.sharding.get_mesh()
    return mesh if cuts_batch_alone() and rows % mesh.size == 0 else None


def shard_map_batch(function: Callable[[Any, Any], T], whole: Any, rows: Any, mesh: Mesh | None) -> T:
    """`function(whole, rows)`, where no row needs another: each device computes what it has of the leading axes.

    Nothing is exchanged between devices, within loops neither. Without a mesh, it is one call.
    """
    if mesh is None:
        return function(whole, rows)
    own = PartitionSpec("data")
    return jax.shard_map(function, mesh=mesh, in_specs=(PartitionSpec(), own), out_specs=own, check_vma=False)(
        whole, rows
    )


def all_gather_fsdp(params: ParametersT) -> ParametersT:
    """The same weights, each whole along fsdp: where this is called, it is gathered, and its gradient is summed.

    A stack of layers is left cut, for each layer to be gathered in its turn; without a mesh, all is left as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get("fsdp", 1) == 1:
        return params

    def whole(own: Axes, leaf: Array) -> Array:
        spec = (None if along == "fsdp" else along for along in weight_spec(own, leaf.shape, mesh))
        return leaf if own.in_layer else jax.lax.with_sharding_constraint(leaf, PartitionSpec(*spec))

    return jax.tree.map(whole, axes(params), params)


def device_put_global(tree: Any, shardings: Any) -> Any:
    """Arrays that every process holds whole, laid over the devices of them all; one sharding may stand for a tree's."""

    def lay(sharding: NamedSharding, part: Any) -> Any:
        return jax.tree.map(lambda leaf: from_process_local(np.asarray(leaf), sharding), part)

    return jax.tree.map(lay, shardings, tree)


def from_process_local(array: np.ndarray, sharding: Any) -> Array:
    """One such array."""
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device has whole."""
    return NamedSharding(mesh, PartitionSpec())
