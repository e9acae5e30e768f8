"""Parameters: a weight is declared once, as an annotated field, and everything derives from that line.

>>> class FeedForward(Parameters):
...     up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
...     up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="feed_forward_bias")

The annotation names the axes; a config gives their sizes (`config.sizes`) and answers `when` (a weight whose `when` is
false is None, and not part of the structure). Shape, fan-in, initial scale, weight-decay membership and the table
that `flaxformer plan` prints are read off the declaration.

A weight's random key is a function of its path and the seed: adding a weight never changes another, and two
architectures start from bitwise equal values wherever they share a path and a shape.

All random numbers of a run come from `jax.random.key(seed)` by these streams: `fold_in_name` folds in a name, and
`jax.random.fold_in` an index.

| stream | random numbers |
| --- | --- |
| parameters, path | a weight's initial value |
| parameters, encoder, path | an encoder's |
| data, step | a training batch: which examples, or which synthetic numbers |
| data, step, corruption | its hidden tokens or spans |
| dropout, step | all below; with micro-batches or devices that sum apart, also the index of the part or the device |
| …, embedding | dropout of the embedded tokens |
| …, blocks, layer, branch | dropout of a branch's update |
| …, blocks, layer, branch, component | random numbers of its component (`Context.key`) |
| …, head | random numbers of the head |
| …, encoder, … | the same of an encoder |
| samples, step | texts that a job samples at a step |

Evaluation data are the same for every seed: they come from fixed keys.
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
from flaxformer.struct import UserError, alternatives, did_you_mean, type_hints


class Parameters(Node):
    """Base of every parameter tree: fields are weights (`param`) or other parameter trees (`subtree`)."""


ParametersT = TypeVar("ParametersT", bound=Parameters)
NodeT = TypeVar("NodeT")


INITS = ("matrix", "branch", "output", "zeros", "ones")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Declaration of one weight: its shape, axes, initializer and whether gradients train it."""

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
    batch_axis: str = "",
    init: str = "matrix",
    std: str | float | None = None,
    value: str | float | None = None,
    decay: bool = True,
    trained: bool | str = True,
    when: str | None = None,
) -> Any:
    """Declare a weight.

    Args:
      fan_in: the axes that are summed over when the weight is applied, such as "heads d_head"; the rest are fan-out.
      batch_axis: axes along which separate matrices are stacked, such as "experts": neither fan-in nor fan-out.
      init: "matrix", drawn by the model's initializer; "branch", the same for the last maps of a residual branch, which
        a residual rule may scale; "output", the same for the matrix of a head, whose answer is to begin small; "zeros"
        or "ones".
      std: draw from N(0, std²) instead; a number, or the name of a field of the component.
      value: begin with this constant instead; a number, or the name of a field.
      decay: whether weight decay shrinks it.
      trained: whether gradients change it; or a field that says so.
      when: a dotted attribute of the component; the weight exists where it is true.
    """
    if init not in INITS:
        raise UserError(f"init is {init!r}; expected one of: {', '.join(INITS)} (or std=, or value=)")
    if std is not None or value is not None:
        init = "normal" if value is None else "constant"
    declaration: dict[str, Any] = {"fan_in": tuple(fan_in.split()), "batch_axis": tuple(batch_axis.split())}
    declaration |= {"init": init, "decay": decay, "trained": trained, "when": when}
    return flax.struct.field(default=None, metadata=declaration | {"number": value if std is None else std})


def subtree(
    *,
    component: str | None = None,
    when: str | None = None,
    repeat: str | None = None,
    config: str | None = None,
    sizes: Mapping[str, str] | None = None,
    stacked: bool = False,
) -> Any:
    """Declare a nested tree.

    Args:
      component: a dotted attribute of the component, or "model." and one of the model: the component whose `Weights`
        the tree is; None there leaves it out.
      when: a dotted attribute of the config; the tree exists where it is true.
      repeat: a dotted attribute of the config: how many copies a tuple holds, or the config of each.
      config: a dotted attribute of the config: the config of the nested tree, where it has its own.
      stacked: whether arrays of the nested tree have a leading axis of layers.
      sizes: axes of the nested tree that have the size of another axis here, such as {"d_norm": "d_head"}.
    """
    rules: dict[str, Any] = {"component": component, "when": when, "repeat": repeat, "config": config}
    rules |= {"sizes": sizes or {}, "stacked": stacked}
    return flax.struct.field(default=None, metadata=rules)


@dataclasses.dataclass(frozen=True)
class Declared:
    """A weight's declaration, with the component or config that it belongs to."""

    spec: Spec
    owner: Any
    number: str | float | None

    @property
    def value(self) -> Any:
        """The number that `std` or `value` names."""
        return attribute(self.owner, self.number)


def declare(cls: type[ParametersT], config: Any, sizes: Mapping[str, int] | None = None) -> ParametersT:
    """The tree of `Spec`s that `cls` has under a config with `sizes` and the attributes that `when` names."""
    return jax.tree.map(lambda own: own.spec, declarations(cls, config, sizes), is_leaf=_is_declared)


def _is_declared(node: Any) -> bool:
    return isinstance(node, Declared)


def declarations(
    cls: type[ParametersT], config: Any, sizes: Mapping[str, int] | None = None, model: Any = None
) -> ParametersT:
    """The tree of a class's `Declared` weights, under a config, or under a component of a model with these sizes."""
    model, sizes = config if model is None else model, dict(config.sizes if sizes is None else sizes)
    _check_declaration(cls, config)
    values = {}
    for field in dataclasses.fields(cls):
        rule, (kind, *_) = field.metadata, alternatives(type_hints(cls)[field.name])
        if "init" not in rule and rule["component"] is not None:
            part = component_of(config, model, rule["component"])
            if part is None or (rule["when"] is not None and not attribute(config, rule["when"])):
                continue
            own = sizes | {name: sizes[other] for name, other in rule["sizes"].items()}
            values[field.name] = declarations(part.Weights, part, own | part.sizes(own), model)
        elif rule["when"] is not None and not attribute(config, rule["when"]):
            continue
        elif "init" in rule:
            spec = _spec(kind.dim_str.split(), rule, config, sizes)
            values[field.name] = Declared(spec, config, rule["number"])
        elif rule["repeat"] is not None:
            layers = attribute(config, rule["repeat"])
            if isinstance(layers, int):
                values[field.name] = (declarations(kind.__args__[0], config, sizes, model),) * layers
            else:
                known = {id(own): declarations(kind.__args__[0], own) for own in layers}
                values[field.name] = tuple(known[id(own)] for own in layers)
        elif rule["config"] is not None:
            values[field.name] = declarations(kind, attribute(config, rule["config"]))
        else:
            values[field.name] = declarations(kind, config, sizes, model)
    return cls(**values)


def _check_declaration(cls: Any, config: Any) -> None:
    """Refuse a class of weights that does not declare them as this module reads them."""
    name = f"{type(config).__name__}.{cls.__name__}"
    if not issubclass(cls, Parameters):
        raise UserError(f"{name} is a plain class; expected class Weights(Parameters)")
    for field in dataclasses.fields(cls):
        kind, *_ = alternatives(type_hints(cls)[field.name])
        if "init" not in field.metadata and "component" not in field.metadata:
            raise UserError(f"{name}.{field.name} is a plain field; expected param(...) for a weight, or subtree(...)")
        if "init" in field.metadata and not hasattr(kind, "dim_str"):
            raise UserError(f'{name}.{field.name} has no named axes; expected Float[Array, "d_model d_ff"], or others')


def attribute(config: Any, question: Any) -> Any:
    """A dotted attribute of the config, or what needs no config."""
    if not isinstance(question, str):
        return question
    try:
        return operator.attrgetter(question)(config)
    except AttributeError as error:
        kind = type(config)
        known = [*(field.name for field in dataclasses.fields(kind)),
                 *(name for name, value in vars(kind).items() if isinstance(value, property))]  # fmt: skip
        raise UserError(
            f"a weight of {kind.__name__} depends on '{question}'{did_you_mean(question, known)}"
        ) from error


def component_of(owner: Any, model: Any, name: str) -> Any:
    """The component at a dotted attribute of the owner, or of the model where the name begins with "model."."""
    return attribute(model, name.removeprefix("model.")) if name.startswith("model.") else attribute(owner, name)


def _spec(axes: list[str], rule: Any, config: Any, sizes: Mapping[str, int]) -> Spec:
    for axis in (*axes, *rule["fan_in"], *rule["batch_axis"]):
        if axis not in sizes:
            raise UserError(
                f"a weight of {type(config).__name__} has the axis '{axis}'{did_you_mean(axis, list(sizes))}"
                f" (a component's static integer fields are axes too)"
            )
    named = " ".join(rule["fan_in"])
    if (rule["init"] in MATRICES and not named) or not set(rule["fan_in"]) <= set(axes):
        raise UserError(
            f"a weight [{' '.join(axes)}] of {type(config).__name__} has fan_in '{named}'; expected those of its axes "
            "that are summed over when it is applied"
        )
    fan_in = math.prod(sizes[axis] for axis in rule["fan_in"])
    outward = [axis for axis in axes if axis not in rule["batch_axis"]]
    for axis in rule["fan_in"]:
        if axis in outward:  # of a square matrix, whose axes have one name, the first
            outward.remove(axis)
    fan_out = math.prod(sizes[axis] for axis in outward)
    return Spec(
        shape=tuple(sizes[axis] for axis in axes),
        axes=tuple(axes),
        init=rule["init"],
        fan_in=fan_in,
        fan_out=fan_out,
        decay=rule["decay"],
        trained=bool(attribute(config, rule["trained"])),
    )


MATRICES = ("matrix", "branch", "output")
CONSTANTS = {"zeros": 0.0, "ones": 1.0}


def initialise(key: jax.Array, declared: ParametersT, std: Callable[[Spec], Any]) -> ParametersT:
    """Draw every weight: a constant of its kind, or a standard deviation times N(0, 1) from the key of its path."""

    def draw(path: Any, own: Declared) -> jax.Array:
        spec = own.spec
        if spec.init in CONSTANTS or spec.init == "constant":
            return jnp.full(spec.shape, CONSTANTS.get(spec.init, own.value), jnp.float32)
        deviation = own.value if spec.init == "normal" else std(spec)
        return deviation * jax.random.normal(fold_in_name(key, path_name(path)), spec.shape, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, declared, is_leaf=_is_declared)


def path_name(path: Any) -> str:
    """The name of a leaf, such as "blocks/0/attention/query"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def fold_in_name(key: jax.Array, name: str) -> jax.Array:
    """The random stream of that name: independent of every other name and of the order of use."""
    return jax.random.fold_in(key, int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "little"))


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
