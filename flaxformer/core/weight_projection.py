"""Projection of weights after a step of an optimizer, as the components that own them declare it."""

import dataclasses

import jax
from jaxtyping import PyTree

from flaxformer.core.params import Parameters, ParametersT, SubtreeRule, rule_of
from flaxformer.core.weight_specs import component_of, get_attribute


def project_components(params: ParametersT, config: object) -> ParametersT:
    """Return the weights after `Component.after_step` of every component of a model.

    Args:
      params: weights in any layout; those of stacked layers are mapped over the layers.
    """
    return _of_node(params, config, config, False)


def _of_node(node: ParametersT, owner: object, model: object, is_stacked: bool) -> ParametersT:
    """Return the weights of one tree, and of the trees in it.

    Args:
      owner: the component or config that declares the tree.
      model: the model config that the owner belongs to.
    """
    values: dict[str, PyTree] = {}
    for field in dataclasses.fields(node):
        value, rule = getattr(node, field.name), rule_of(field)
        if isinstance(rule, SubtreeRule) and value is not None:
            value = _of_subtree(value, rule, owner, model, is_stacked)
        values[field.name] = value
    return type(node)(**values)


def _of_subtree(value: PyTree, rule: SubtreeRule, owner: object, model: object, is_stacked: bool) -> PyTree:
    if rule.repeat is not None:
        return _of_layers(value, get_attribute(owner, rule.repeat))
    if rule.config is not None:
        config = get_attribute(owner, rule.config)
        return _of_node(value, config, config, is_stacked)
    if rule.component is None:
        return _of_node(value, owner, model, is_stacked)
    component = component_of(owner, model, rule.component)
    projected = _of_node(value, component, model, is_stacked)
    if component is None or not component.has_after_step:
        return projected
    return jax.vmap(component.after_step)(projected) if is_stacked else component.after_step(projected)


def _of_layers(layers: PyTree, configs: tuple[object, ...]) -> PyTree:
    """Return the weights of layers in either layout; stacked layers that differ are in a tuple of their period."""
    if isinstance(layers, tuple):
        return tuple(_of_node(layer, config, config, False) for layer, config in zip(layers, configs, strict=True))
    stacked = {field.name for field in dataclasses.fields(layers) if getattr(rule_of(field), "stacked", False)}
    if not stacked:
        return _of_node(layers, configs[0], configs[0], True)
    [name] = stacked
    places: tuple[Parameters, ...] = getattr(layers, name)
    pairs = zip(places, configs, strict=False)
    return layers.replace(**{name: tuple(_of_node(place, config, config, True) for place, config in pairs)})
