"""Properties of each weight of a tree, from its declaration: weight decay, training, and named axes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flaxformer.core.params import (
    AdaptedWeight,
    Parameters,
    ParametersT,
    SubtreeRule,
    WeightRule,
    matrix_places,
    rule_of,
)
from flaxformer.core.struct import Config, alternatives, type_hints
from flaxformer.core.weight_specs import component_of, get_attribute

KINDS = ("embedding", "positions", "head", "residual")
"""Components whose weights have the kind of the component, beside the norms."""
Mark = Literal["decay", "trained"]


def decay_mask(params: ParametersT) -> ParametersT:
    """Return a tree like params with True at the weights that weight decay applies to."""
    return _mark_weights(params, None, None, "decay")


def trained_mask(params: ParametersT, config: Config) -> ParametersT:
    """Return a tree like params with True at the weights that gradients change."""
    return _mark_weights(params, config, config, "trained")


@dataclasses.dataclass(frozen=True)
class Axes:
    """Named axes of a weight as it is stored; the first axis of a stacked weight is "layers"."""

    names: tuple[str, ...]
    fan_in: tuple[str, ...]
    """Axes that are summed over when the weight is applied; empty if it is not a linear map."""
    batch: tuple[str, ...]
    """Axes along which separate matrices are stacked."""
    in_layer: bool
    """True if the weight belongs to a layer of a stack, in either layout."""
    role: str
    """One of `params.ROLES`."""
    kind: str = ""
    """Purpose: "embedding", "positions", "head", "norm", "residual"; or the field's name, such as "query" or "up"."""
    path: str = ""
    """Place in the tree, such as "blocks/3/attention/query"; without a number in stacked layers."""

    @property
    def stacked(self) -> bool:
        """True if the array holds the weights of several layers."""
        return self.names[:1] == ("layers",)

    @property
    def as_matrix(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """Places of the axes along which matrices are stacked, of those summed over, and of those of the result.

        Of an embedding table, the vocabulary counts as summed over. None for a weight that is not a matrix.
        """
        leading = ("layers",) if self.stacked else ()
        summed = self.fan_in or (("vocabulary",) if "vocabulary" in self.names else ())
        places = matrix_places(self.names, summed, (*leading, *self.batch))
        return places if places[1] and places[2] else None

    @property
    def is_layer_matrix(self) -> bool:
        """True for a linear map of a layer, which an optimizer such as Muon moves as a whole."""
        return self.in_layer and bool(self.fan_in) and self.as_matrix is not None

    def matrices(self, x: Array) -> Float[Array, "*stacked n_in n_out"]:
        """Return a weight with one axis of all that is summed over and one of all results, behind the stacked ones.

        Raises:
          ValueError: the weight is not a matrix.
        """
        order, lengths = self._order(x.shape)
        stacked = len(self.as_matrix[0]) if self.as_matrix else 0
        return x.transpose(order).reshape(*(x.shape[place] for place in order[:stacked]), *lengths)

    def from_matrices(self, matrices: Float[Array, "*stacked n_in n_out"], shape: tuple[int, ...]) -> Array:
        """Return matrices in the shape of the weight: the inverse of `matrices`."""
        order, _ = self._order(shape)
        return matrices.reshape(tuple(shape[place] for place in order)).transpose(np.argsort(order))

    def _order(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Return the places of all axes, stacked ones first, and the numbers of inputs and of outputs of a matrix."""
        if self.as_matrix is None:
            raise ValueError(f"{self.path} has axes {self.names}; expected a matrix")
        stacked, summed, result = self.as_matrix
        inputs, outputs = (math.prod(shape[place] for place in places) for places in (summed, result))
        return (*stacked, *summed, *result), (inputs, outputs)

    def of_adapter(self, name: str, dimensions: int) -> "Axes":
        """The axes of an adapter's array: those along which matrices are stacked, and the array's own."""
        leading = tuple(axis for axis in self.names if axis in ("layers", *self.batch))
        own_names = tuple(f"{name} {place}" for place in range(dimensions - len(leading)))
        fan_in = own_names[:1] if len(own_names) == 2 else ()
        path = f"{self.path}/{name}"
        return Axes((*leading, *own_names), fan_in, self.batch, self.in_layer, self.role, self.kind, path)


def axes(params: ParametersT) -> ParametersT:
    """Return a tree like params with the `Axes` of each weight; a place without an array stays as it is."""
    return _axes(params, (), False, None, ())


def _kind(component: str | None, outer: str | None) -> str | None:
    """Return the kind of the weights of a component by the attribute that holds it; None for the names of fields."""
    name = "" if component is None else component.rpartition(".")[2]
    return "norm" if "norm" in name else name if name in KINDS else outer


def _axes(
    node: ParametersT, leading: tuple[str, ...], in_layer: bool, outer: str | None, path: tuple[str, ...]
) -> ParametersT:
    values: dict[str, object] = {}
    for field in dataclasses.fields(node):
        value, rule = getattr(node, field.name), rule_of(field)
        here = (*path, field.name)
        if not jax.tree.leaves(value):
            values[field.name] = value
        elif isinstance(rule, WeightRule):
            annotation, *_ = alternatives(type_hints(type(node))[field.name])
            names, kind = (*leading, *annotation.dim_str.split()), rule.kind or outer or field.name
            weight_axes = Axes(names, rule.fan_in, rule.batch_axis, in_layer, rule.role, kind, "/".join(here))
            values[field.name] = _with_adapter(weight_axes, value) if isinstance(value, AdaptedWeight) else weight_axes
        elif isinstance(rule, SubtreeRule):
            repeated = rule.repeat is not None
            is_in_layer = in_layer or repeated
            is_stacked = rule.stacked or (repeated and not isinstance(value, tuple) and not _has_stacked_field(value))
            inner = ("layers",) if is_stacked else leading
            within = _kind(rule.component, outer)
            values[field.name] = (
                tuple(_axes(item, inner, is_in_layer, within, (*here, str(n))) for n, item in enumerate(value))
                if isinstance(value, tuple)
                else _axes(value, inner, is_in_layer, within, here)
            )
    return type(node)(**values)


def _with_adapter(weight_axes: Axes, value: AdaptedWeight) -> AdaptedWeight:
    """Return the axes of each array of a weight with an adapter; None where the tree has no array."""
    arrays = {
        name: None if array is None else weight_axes.of_adapter(name, jnp.ndim(array))
        for name, array in value.adapter.items()
    }
    return AdaptedWeight(base=None if value.base is None else weight_axes, adapter=arrays)


def _has_stacked_field(node: Parameters) -> bool:
    """True if the tree declares a subtree whose arrays have a leading axis of layers."""
    rules = [rule_of(field) for field in dataclasses.fields(node)]
    return any(isinstance(rule, SubtreeRule) and rule.stacked for rule in rules)


def _mark_weights(node: ParametersT, owner: object, model: object, mark: Mark) -> ParametersT:
    """Return a tree like node with a property of each weight's declaration.

    Args:
      owner: the component or config that declares the weights; None if the property does not depend on it.
      model: the model config that the owner belongs to.
    """
    values: dict[str, object] = {}
    for field in dataclasses.fields(node):
        value, rule = getattr(node, field.name), rule_of(field)
        if value is None:
            values[field.name] = None
        elif isinstance(rule, WeightRule):
            marked = bool(get_attribute(owner, rule.decay if mark == "decay" else rule.trained))
            is_adapted = isinstance(value, AdaptedWeight)
            values[field.name] = jax.tree.map(lambda _, m=marked: m, value) if is_adapted else marked
        elif isinstance(rule, SubtreeRule):
            values[field.name] = _mark_subtree(value, rule, owner, model, mark)
    return type(node)(**values)


def _mark_subtree(
    node: Parameters | tuple[Parameters, ...], rule: SubtreeRule, owner: object, model: object, mark: Mark
) -> Parameters | tuple[Parameters, ...]:
    """Apply `_mark_weights` to a nested tree, with the owner that its declaration names."""
    repeated = None if owner is None or rule.repeat is None else get_attribute(owner, rule.repeat)
    if isinstance(node, tuple):
        owners = repeated if isinstance(repeated, tuple) else (owner,) * len(node)
        return tuple(
            _mark_weights(item, element_owner, element_owner, mark)
            for item, element_owner in zip(node, owners, strict=True)
        )
    if owner is not None and rule.component is not None:
        owner = component_of(owner, model, rule.component)
    elif owner is not None and rule.config is not None:
        owner = model = get_attribute(owner, rule.config)
    elif isinstance(repeated, tuple):
        owner = model = repeated[0]  # stacked layers have the same declarations
    return _mark_weights(node, owner, model, mark)
