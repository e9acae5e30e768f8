"""Weights of an architecture: each declaration resolved to a `Spec` under a config, and drawn."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer.core.normal_blocks import NormalArray, draw
from flaxformer.core.params import (
    CONSTANTS,
    MATRICES,
    Parameters,
    ParametersT,
    Spec,
    WeightRule,
    path_name,
    rule_of,
)
from flaxformer.core.struct import alternatives, type_hints
from flaxformer.system.errors import UserError, did_you_mean


class ModelSizes(Protocol):
    """A model config, as far as declarations read it."""

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every named axis."""


class OwnsWeights(Protocol):
    """A component, as far as declarations read it."""

    @property
    def Weights(self) -> type[Parameters]:  # noqa: N802
        """Class that declares the weights."""

    def axis_sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the component's own axes."""

    @property
    def has_after_step(self) -> bool:
        """True if the component changes its weights after a step of the optimizer."""

    def after_step(self, weights: Parameters) -> Parameters:
        """Return the weights after a step of the optimizer."""


@dataclasses.dataclass(frozen=True)
class Declared:
    """A weight's `Spec`, with the component or config that declares the weight."""

    spec: Spec
    owner: object
    number: str | float | None

    @property
    def value(self) -> float | Array:
        """Value of the number or field that `std` or `value` names."""
        return get_attribute(self.owner, self.number)


def declare(cls: type[ParametersT], config: ModelSizes) -> ParametersT:
    """Return the tree of `Spec`s that a class of weights has under a model config."""
    return jax.tree.map(lambda declared: declared.spec, declarations(cls, config), is_leaf=_is_declared)


def _is_declared(node: object) -> bool:
    return isinstance(node, Declared)


def declarations(cls: type[ParametersT], config: ModelSizes) -> ParametersT:
    """Return the tree of `Declared` weights that a class of weights has under a model config.

    Raises:
      UserError: a declaration that names an unknown attribute or axis, or that has no fan-in where it needs one.
    """
    return _declarations(cls, config, config, config.sizes)


def _declarations(cls: type[ParametersT], owner: object, model: ModelSizes, sizes: Mapping[str, int]) -> ParametersT:
    """Return the declared weights of an owner: the model, or a component of it with these axes."""
    _check_declaration(cls, owner)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        rule, (kind, *_) = rule_of(field), alternatives(type_hints(cls)[field.name])
        if rule is None or (rule.when is not None and not get_attribute(owner, rule.when)):
            continue
        if isinstance(rule, WeightRule):
            values[field.name] = Declared(_spec(kind.dim_str.split(), rule, owner, sizes), owner, rule.number)
        elif rule.component is not None:
            component = component_of(owner, model, rule.component)
            if component is not None:
                outer = {**sizes, **{name: sizes[other] for name, other in rule.sizes.items()}}
                own_sizes = outer | component.axis_sizes(outer)
                values[field.name] = _declarations(component.Weights, component, model, own_sizes)
        elif rule.repeat is not None:
            configs = get_attribute(owner, rule.repeat)
            (item, *_) = get_args(kind)
            if isinstance(configs, int):
                values[field.name] = (_declarations(item, owner, model, sizes),) * configs
            else:
                by_identity = {id(config): declarations(item, config) for config in configs}
                values[field.name] = tuple(by_identity[id(config)] for config in configs)
        elif rule.config is not None:
            values[field.name] = declarations(kind, get_attribute(owner, rule.config))
        else:
            values[field.name] = _declarations(kind, owner, model, sizes)
    return cls(**values)


def _check_declaration(cls: type, owner: object) -> None:
    """Check that every field of a class of weights is declared with `param` or `subtree`."""
    name = f"{type(owner).__name__}.{cls.__name__}"
    if not issubclass(cls, Parameters):
        raise UserError(f"{name} is a plain class; expected class Weights(Parameters)")
    for field in dataclasses.fields(cls):
        rule, (kind, *_) = rule_of(field), alternatives(type_hints(cls)[field.name])
        if rule is None:
            raise UserError(f"{name}.{field.name} is a plain field; expected param(...) for a weight, or subtree(...)")
        if isinstance(rule, WeightRule) and not hasattr(kind, "dim_str"):
            raise UserError(f'{name}.{field.name} has no named axes; expected Float[Array, "d_model d_ff"], or others')


def get_attribute(owner: object, name: str | float | None) -> Any:
    """Return a dotted attribute of a component or config; a name that is not a string is returned as it is.

    Raises:
      UserError: there is no such attribute.
    """
    if not isinstance(name, str):
        return name
    try:
        return operator.attrgetter(name)(owner)
    except AttributeError as error:
        kind = type(owner)
        properties = [attribute for attribute, value in vars(kind).items() if isinstance(value, property)]
        valid = [*getattr(kind, "__dataclass_fields__", {}), *properties]
        raise UserError(f"a weight of {kind.__name__} depends on '{name}'{did_you_mean(name, valid)}") from error


def component_of(owner: object, model: object, name: str) -> OwnsWeights | None:
    """Return the component at a dotted attribute of the owner, or of the model if the name begins with "model."."""
    is_of_model = name.startswith("model.")
    return get_attribute(model, name.removeprefix("model.")) if is_of_model else get_attribute(owner, name)


def _spec(axes: list[str], rule: WeightRule, owner: object, sizes: Mapping[str, int]) -> Spec:
    for axis in (*axes, *rule.fan_in, *rule.batch_axis):
        if axis not in sizes:
            raise UserError(
                f"a weight of {type(owner).__name__} has the axis '{axis}'{did_you_mean(axis, list(sizes))}"
                f" (a component's static integer fields are axes too)"
            )
    named = " ".join(rule.fan_in)
    if (rule.init in MATRICES and not named) or not set(rule.fan_in) <= set(axes):
        raise UserError(
            f"a weight [{' '.join(axes)}] of {type(owner).__name__} has fan_in '{named}'; expected those of its axes "
            "that are summed over when it is applied"
        )
    fan_out = [axis for axis in axes if axis not in rule.batch_axis]
    for axis in rule.fan_in:
        if axis in fan_out:  # both axes of a square matrix have one name: the first is the fan-in
            fan_out.remove(axis)
    return Spec(
        shape=tuple(sizes[axis] for axis in axes),
        axes=tuple(axes),
        init=rule.init,
        fan_in=math.prod(sizes[axis] for axis in rule.fan_in),
        fan_out=math.prod(sizes[axis] for axis in fan_out),
        decay=rule.decay,
        trained=bool(get_attribute(owner, rule.trained)),
        role=rule.role,
        active_shape=_active_shape(axes, owner, sizes),
        summed=rule.fan_in,
        stacked=rule.batch_axis,
    )


def _active_shape(axes: list[str], owner: object, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the entries of a weight that one token uses.

    Raises:
      UserError: the component declares more entries of an axis than there are, or not a number.
    """
    active: Mapping[str, int] = getattr(owner, "active_sizes", dict)()
    for axis in axes:
        used = active.get(axis, sizes[axis])
        if not isinstance(used, int) or not 0 <= used <= sizes[axis]:
            raise UserError(
                f"{type(owner).__name__}.active_sizes() gives {used!r} for the axis '{axis}'; expected a number from 0 "
                f"to {sizes[axis]}"
            )
    return tuple(active.get(axis, sizes[axis]) for axis in axes)


class InitialValue(NamedTuple):
    """Initial value of a weight.

    Args:
      scale: standard deviation, or the value of a constant.
      is_constant: True if nothing is drawn.
      entries: function of independent numbers of N(0, 1), of the weight's shape, and the `Spec`, whose result times
        `scale` is the weight; None for the numbers themselves.
    """

    scale: float | Array
    is_constant: bool = False
    entries: Callable[[Array, Spec], Array] | None = None


def initialise(
    key: Array, declared: ParametersT, initial: Callable[[Spec, float | Array | None], InitialValue]
) -> ParametersT:
    """Draw the initial weights, in float32.

    Args:
      key: the key of a weight is this one with the weight's path folded in.
      declared: the tree of `declarations`.
      initial: initial value of a weight, from its `Spec` and the number that its declaration gives, or None.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(declared, is_leaf=_is_declared)
    specs = [dataclasses.replace(weight.spec, path=path_name(path)) for path, weight in flat]
    values = [initial(spec, _number(weight, spec)) for spec, (_, weight) in zip(specs, flat, strict=True)]
    normal = [
        NormalArray(spec.path, spec.shape, value.scale if value.entries is None else 1.0)
        for spec, value in zip(specs, values, strict=True)
        if not value.is_constant
    ]
    numbers = iter(draw(key, normal))

    def weight(spec: Spec, value: InitialValue) -> Array:
        if value.is_constant:
            return jnp.full(spec.shape, value.scale, jnp.float32)
        drawn = next(numbers)
        return drawn if value.entries is None else value.scale * value.entries(drawn, spec)

    return jax.tree.unflatten(structure, list(map(weight, specs, values)))


def _number(declared: Declared, spec: Spec) -> float | Array | None:
    """Return the number of a declaration, which may be a method of the component."""
    value = CONSTANTS.get(spec.init, declared.value)
    if not callable(value):
        return value
    value = value(spec)
    if any(n not in (1, size) for n, size in zip(jnp.shape(value)[::-1], spec.shape[::-1], strict=False)) or (
        jnp.ndim(value) > len(spec.shape)
    ):
        kind, name = type(declared.owner).__name__, declared.number
        raise UserError(f"{kind}.{name} gives an array {list(jnp.shape(value))}; expected {list(spec.shape)}")
    return value
