"""Parameters: each weight is declared once, as an annotated field; all its properties derive from that declaration.

>>> class FeedForward(Parameters):
...     up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
...     up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="feed_forward_bias")

The annotation names the axes, and the config gives their sizes (`config.sizes`). `when` names an attribute of the
config; if it is false, the weight is None and not part of the tree structure. Shape, fan-in, initial scale, weight
decay and the table that `flaxformer plan` prints follow from the declaration.

The random key of a weight is a function of its path and the seed. Adding a weight therefore never changes another one,
and two architectures start with bitwise equal values wherever they share a path and a shape.

All random numbers of a run derive from `jax.random.key(seed)` as this table says: `fold_in_name` folds in a name, and
`jax.random.fold_in` an index. `Run.seeds` may give parameters, data and dropout seeds of their own.

| folded in | random numbers |
| --- | --- |
| parameters, path | initial value of a weight |
| parameters, encoder, path | initial value of a weight of the encoder |
| adapters, path | initial values of a weight's adapter |
| data, step | training batch: the choice of examples, or the synthetic numbers |
| data, mixture, step | domain of each example of a mixture |
| data, domains, name, step | training batch of a domain |
| data, step, corruption | tokens or spans that are hidden |
| dropout, step | all below |
| …, embedding | dropout of the embedded tokens |
| …, blocks, layer, branch | dropout of a branch's update |
| …, blocks, layer, branch, component | random numbers of the branch's component (`Context.key`) |
| …, blocks, layer, shared | random numbers that the branches of a layer share (`Context.layer_key`) |
| …, head | random numbers of the head (`Context.key`) |
| …, encoder, … | the same for the encoder |
| samples, step | texts that a job generates at a step |
| test | test set of a synthetic task; of a fixed seed, as its evaluation set |
| corruption, test | tokens or spans that are hidden in the test set; of a fixed seed |

Evaluation and test data are the same for every seed. A dropout mask belongs to a row of the batch: it is the same
whether the batch is computed whole, in micro-batches, or on several devices. In a part of a batch, the first row is
also folded into `Context.key`.
"""

import dataclasses
import hashlib
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath
from jaxtyping import Array, PyTree

from flaxformer.core.pytree import Node
from flaxformer.system.errors import UserError


class Parameters(Node):
    """Base of every tree of weights; its fields are weights (`param`) or further trees (`subtree`)."""


class AdaptedWeight(Parameters):
    """A weight with an adapter, in the place of the weight: the frozen weight, and the adapter's trained arrays.

    In a tree like params, such as a mask, its fields hold what that tree has for each array.
    """

    base: PyTree
    adapter: dict[str, PyTree]


ParametersT = TypeVar("ParametersT", bound=Parameters)
NodeT = TypeVar("NodeT")

MATRICES = ("matrix", "branch", "output")
CONSTANTS = {"zeros": 0.0, "ones": 1.0}
INITS = (*MATRICES, *CONSTANTS)
ROLES = ("input", "hidden", "output", "vector")
"""Roles of a weight as the width of the model grows: a matrix from inputs of fixed size ("input"), between two widths
("hidden"), or to outputs of fixed size ("output"); or no matrix ("vector"): a bias, a gain or an embedding table."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape, axes, initializer and role of one weight, and whether it is decayed and trained."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: str
    fan_in: int
    fan_out: int
    decay: bool
    trained: bool
    role: str
    active_shape: tuple[int, ...]
    """The shape of the entries that one token uses (`Component.active_sizes`)."""
    summed: tuple[str, ...] = ()
    """Axes that are summed over when the weight is applied (`fan_in` of `param`)."""
    stacked: tuple[str, ...] = ()
    """Axes along which separate matrices are stacked (`batch_axis` of `param`)."""
    path: str = ""
    """Path of the weight in its stack, such as "blocks/3/attention/out", while initial weights are drawn."""

    @property
    def layer(self) -> int | None:
        """Number of the block that the weight belongs to; None outside of the blocks."""
        place = self.path.split("/")
        return int(place[1]) if place[0] == "blocks" else None

    @property
    def is_branch_output(self) -> bool:
        """True for a matrix with which a residual branch writes to the residual stream."""
        result = [self.axes[place] for place in matrix_places(self.axes, self.summed, self.stacked)[2]]
        return self.layer is not None and self.init == "branch" and result == ["d_model"]


def matrix_places(
    names: tuple[str, ...], summed: tuple[str, ...], stacked: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the places of the axes along which matrices are stacked, of those summed over, and of those of the result.

    Args:
      names: axes of a weight.
      summed: those that are summed over; both axes of a square matrix have one name, and the first is summed over.
      stacked: those along which matrices are stacked.
    """
    outer = tuple(place for place, name in enumerate(names) if name in stacked)
    inner: list[int] = []
    for wanted in summed:
        inner.append(
            next(place for place, name in enumerate(names) if name == wanted and place not in (*outer, *inner))
        )
    result = tuple(place for place in range(len(names)) if place not in (*outer, *inner))
    return outer, tuple(inner), result


@dataclasses.dataclass(frozen=True)
class WeightRule:
    """Declaration of a weight: the arguments of `param`."""

    fan_in: tuple[str, ...]
    batch_axis: tuple[str, ...]
    init: str
    number: str | float | None
    """`std` or `value`, whichever is given."""
    decay: bool
    trained: bool | str
    when: str | None
    role: str
    kind: str | None


@dataclasses.dataclass(frozen=True)
class SubtreeRule:
    """Declaration of a nested tree: the arguments of `subtree`."""

    component: str | None
    when: str | None
    repeat: str | None
    config: str | None
    sizes: Mapping[str, str]
    stacked: bool


def param(
    *,
    fan_in: str = "",
    batch_axis: str = "",
    init: str = "matrix",
    std: str | float | None = None,
    value: str | float | None = None,
    decay: bool = True,
    trained: bool | str = True,
    when: str | None = None,
    role: str | None = None,
    kind: str | None = None,
) -> Any:
    """Declare a weight.

    Args:
      fan_in: axes that are summed over when the weight is applied, such as "heads d_head"; the others are fan-out.
      batch_axis: axes along which separate matrices are stacked, such as "experts"; neither fan-in nor fan-out.
      init: "matrix" for the model's initializer; "branch" for the same, scaled by the residual rule, for the last
        matrices of a residual branch; "output" for the same, for a head, whose outputs should begin small; "zeros"; or
        "ones".
      std: standard deviation of N(0, std²), in place of `init`: a number, or the name of a field of the component.
      value: constant initial value, in place of `init`: a number; or the name of a field of the component, or of a
        method that gives an array, which broadcasts to the weight's shape, from the weight's `Spec`.
      decay: True if weight decay applies.
      trained: True if gradients change the weight; or the name of a field of the component.
      when: dotted attribute of the component; the weight exists if it is true.
      role: one of `ROLES`, which a `Parametrization` scales by; None for "vector" without a fan-in, "output" with
        init="output", and "hidden" otherwise.
      kind: purpose of the weight, by which an optimizer can select it (`training.weight_axes`); None for "embedding",
        "positions", "head", "norm" or "residual" in such a component, and the name of the field in others.

    Raises:
      UserError: an unknown `init` or `role`.
    """
    if init not in INITS:
        raise UserError(f"init is {init!r}; expected one of: {', '.join(INITS)} (or std=, or value=)")
    if role is None:
        role = "output" if init == "output" else "hidden" if fan_in else "vector"
    if std is not None or value is not None:
        init = "normal" if value is None else "constant"
    if role not in ROLES:
        raise UserError(f"role is {role!r}; expected one of: {', '.join(ROLES)}")
    number = value if std is None else std
    rule = WeightRule(tuple(fan_in.split()), tuple(batch_axis.split()), init, number, decay, trained, when, role, kind)
    return flax.struct.field(default=None, metadata={"rule": rule})


def subtree(
    *,
    component: str | None = None,
    when: str | None = None,
    repeat: str | None = None,
    config: str | None = None,
    sizes: Mapping[str, str] | None = None,
    stacked: bool = False,
) -> Any:
    """Declare a nested tree of weights.

    Args:
      component: dotted attribute of the component that owns this tree, or "model." and an attribute of the model; the
        nested tree is the `Weights` of the component found there, and absent if there is None.
      when: dotted attribute of the config; the tree exists if it is true.
      repeat: dotted attribute of the config; the number of copies in a tuple, or the config of each copy.
      config: dotted attribute of the config; the config of the nested tree, if that has one of its own.
      sizes: axes of the nested tree whose size is that of another axis here, such as {"d_norm": "d_head"}.
      stacked: True if the arrays of the nested tree have a leading axis of layers.
    """
    rule = SubtreeRule(component, when, repeat, config, sizes or {}, stacked)
    return flax.struct.field(default=None, metadata={"rule": rule})


def rule_of(field: "dataclasses.Field[object]") -> WeightRule | SubtreeRule | None:
    """Return the declaration of a field of a `Parameters` class; None for a field that is not declared."""
    return field.metadata.get("rule")


def path_name(path: KeyPath) -> str:
    """Return the name of a leaf, such as "blocks/0/attention/query"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def fold_in_name(key: Array, name: str) -> Array:
    """Return the key for a name; keys of different names are independent, in whatever order they are derived."""
    return jax.random.fold_in(key, name_number(name))


def name_number(name: str) -> int:
    """Return the number below 2³² that stands for a name in `fold_in_name`."""
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "little")


def table(specs: Parameters) -> Iterator[tuple[str, Spec]]:
    """Yield the path and `Spec` of every weight, in the order of the tree."""
    for path, spec in jax.tree_util.tree_leaves_with_path(specs):
        yield path_name(path), spec


def count(specs: Parameters) -> int:
    """Return the number of parameters."""
    return sum(math.prod(spec.shape) for _, spec in table(specs))


def stack(layers: tuple[NodeT, ...]) -> NodeT:
    """Stack trees of one structure, one per layer, along a new leading axis, the layout that `lax.scan` needs."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def unstack(layers: NodeT) -> tuple[NodeT, ...]:
    """Split stacked trees into one tree per layer: the inverse of `stack`."""
    leaves = jax.tree.leaves(layers)
    if not leaves:  # such as frozen layers in the tree of an optimizer
        return ()
    depth = len(leaves[0])
    return tuple(jax.tree.map(operator.itemgetter(i), layers) for i in range(depth))
