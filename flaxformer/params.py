"""Parameters: a weight is declared once, as an annotated field, and everything derives from that line.

>>> class FeedForward(Parameters):
...     up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
...     up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="feed_forward_bias")

The annotation names the axes; a config gives their sizes (`config.sizes`) and answers `when` (a weight whose `when` is
false is None, and not part of the structure). Shape, fan-in, initial scale, weight-decay membership and the table
that `flaxformer plan` prints are read off the declaration.

A weight's random key is a function of its path and the seed: adding a weight never changes another, and two
architectures start from bitwise equal values wherever they share a path and a shape.
"""

import dataclasses
import hashlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from flaxformer.pytree import Node
from flaxformer.struct import alternatives, type_hints


class Parameters(Node):
    """Base of every parameter tree: fields are weights (`param`) or other parameter trees (`subtree`)."""


ParametersT = TypeVar("ParametersT", bound=Parameters)
NodeT = TypeVar("NodeT")


@dataclasses.dataclass(frozen=True)
class Spec:
    """What one weight is, before it has numbers."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: str
    fan_in: int
    fan_out: int
    decay: bool
    trained: bool


def param(
    *,
    fan_in: str = "",
    init: str = "matrix",
    decay: bool = True,
    trained: bool | str = True,
    when: str | None = None,
) -> Any:
    """Declare a weight.

    Args:
      fan_in: the axes that are summed over when the weight is applied, such as "heads d_head"; the rest are fan-out.
      init: a kind of constant ("zeros", "ones") or of random weight; the config gives its value or standard deviation.
      decay: whether weight decay shrinks it.
      trained: whether gradients change it; or a dotted attribute of the config that says so.
      when: a dotted attribute of the config; the weight exists where it is true.
    """
    declaration = {"fan_in": tuple(fan_in.split()), "init": init, "decay": decay, "trained": trained, "when": when}
    return flax.struct.field(default=None, metadata=declaration)


def subtree(*, when: str | None = None, repeat: str | None = None, config: str | None = None) -> Any:
    """Declare a nested tree.

    Args:
      when: a dotted attribute of the config; the tree exists where it is true.
      repeat: names the axis that counts the copies held in a tuple.
      config: a dotted attribute of the config: the config of the nested tree, where it has its own.
    """
    return flax.struct.field(default=None, metadata={"when": when, "repeat": repeat, "config": config})


def declare(cls: type[ParametersT], config: Any) -> ParametersT:
    """The tree of `Spec`s that `cls` has under a config with `sizes` and the attributes that `when` names."""
    values = {}
    for field in dataclasses.fields(cls):
        rule, (kind, *_) = field.metadata, alternatives(type_hints(cls)[field.name])
        if rule["when"] is not None and not _answer(config, rule["when"]):
            continue
        if "init" in rule:
            values[field.name] = _spec(kind.dim_str.split(), rule, config)
        elif rule["repeat"] is None:
            values[field.name] = declare(kind, _nested(config, rule))
        else:
            values[field.name] = (declare(kind.__args__[0], config),) * config.sizes[rule["repeat"]]
    return cls(**values)


def _answer(config: Any, question: bool | str) -> Any:
    """A dotted attribute of the config, or what needs no config."""
    return operator.attrgetter(question)(config) if isinstance(question, str) else question


def _nested(config: Any, rule: Any) -> Any:
    """The config of a nested tree."""
    return config if rule["config"] is None else _answer(config, rule["config"])


def _spec(axes: list[str], rule: Any, config: Any) -> Spec:
    sizes = config.sizes
    fan_in = math.prod(sizes[axis] for axis in rule["fan_in"])
    fan_out = math.prod(sizes[axis] for axis in axes if axis not in rule["fan_in"])
    return Spec(
        shape=tuple(sizes[axis] for axis in axes),
        axes=tuple(axes),
        init=rule["init"],
        fan_in=fan_in,
        fan_out=fan_out,
        decay=rule["decay"],
        trained=bool(_answer(config, rule["trained"])),
    )


def initialise(
    key: jax.Array, specs: ParametersT, constants: Mapping[str, Any], std: Callable[[Spec], Any]
) -> ParametersT:
    """Draw every weight: a constant of its kind, or std(spec) · N(0, 1) from the key of its path."""

    def draw(path: Any, spec: Spec) -> jax.Array:
        if spec.init in constants:
            return jnp.full(spec.shape, constants[spec.init], jnp.float32)
        return std(spec) * jax.random.normal(stream(key, path_name(path)), spec.shape, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, specs)


def path_name(path: Any) -> str:
    """The name of a leaf, such as "blocks/0/attention/query"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def stream(key: jax.Array, name: str) -> jax.Array:
    """The random stream of that name: independent of every other name and of the order of use."""
    return jax.random.fold_in(key, int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "little"))


def decay_mask(params: ParametersT) -> ParametersT:
    """A tree like params with True at the weights that weight decay shrinks, by declaration."""
    return _marked(params, None, {}, "decay")


def trained_mask(params: ParametersT, config: Any) -> ParametersT:
    """A tree like params with True at the weights that gradients change, by declaration."""
    return _marked(params, config, {}, "trained")


@dataclasses.dataclass(frozen=True)
class Axes:
    """The named axes of a weight as it is held: of a stacked layer's, the first is "layers"."""

    names: tuple[str, ...]
    fan_in: tuple[str, ...]
    """Those that are summed over when the weight is applied; none of a weight that is no linear map's."""
    in_layer: bool
    """Whether it belongs to a layer of a stack, in either layout."""

    @property
    def stacked(self) -> bool:
        """Whether it holds all the layers of a stack."""
        return self.names[:1] == ("layers",)


def axes(params: ParametersT) -> ParametersT:
    """A tree like params with the `Axes` of each weight, by declaration and layout."""
    return _axes(params, (), False)


def _axes(node: Any, leading: tuple[str, ...], in_layer: bool) -> Any:
    if type(node) is tuple:
        return tuple(_axes(item, leading, in_layer) for item in node)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value, rule = getattr(node, field.name), field.metadata
        if value is None:
            values[field.name] = None
        elif "init" in rule:
            kind, *_ = alternatives(type_hints(type(node))[field.name])
            values[field.name] = Axes((*leading, *kind.dim_str.split()), rule["fan_in"], in_layer)
        else:
            repeated = rule["repeat"] is not None
            own = ("layers",) if repeated and type(value) is not tuple else leading
            values[field.name] = _axes(value, own, in_layer or repeated)
    return type(node)(**values)


def _marked(node: Any, config: Any, rule: Any, mark: str) -> Any:
    """A tree like node with each weight's mark, read off its declaration."""
    if node is None:
        return None
    if isinstance(node, tuple):
        return tuple(_marked(item, config, rule, mark) for item in node)
    if isinstance(node, Parameters):
        own = config if config is None or not rule else _nested(config, rule)
        fields = dataclasses.fields(node)
        return type(node)(**{f.name: _marked(getattr(node, f.name), own, f.metadata, mark) for f in fields})
    return _answer(config, rule[mark])


def table(specs: Parameters) -> Iterator[tuple[str, Spec]]:
    """Every weight's path and declaration, in the order of the tree."""
    for path, spec in jax.tree_util.tree_leaves_with_path(specs):
        yield path_name(path), spec


def count(specs: Parameters) -> int:
    """Number of parameters."""
    return sum(math.prod(spec.shape) for _, spec in table(specs))


def stack(layers: tuple[NodeT, ...]) -> NodeT:
    """Per-layer trees as one tree with a leading `layers` axis, the layout that `lax.scan` runs over."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def unstack(layers: NodeT) -> tuple[NodeT, ...]:
    """The inverse of `stack`: per-layer trees, the layout of checkpoints and of unrolled layers."""
    depth = len(jax.tree.leaves(layers)[0])
    return tuple(jax.tree.map(operator.itemgetter(i), layers) for i in range(depth))
