"""Properties of each weight of a tree, from its declaration: whether it decays, is trained, and its named axes."""

import dataclasses
from typing import Any

from flaxformer.params import Parameters, ParametersT, attribute, component_of
from flaxformer.struct import alternatives, type_hints


def decay_mask(params: ParametersT) -> ParametersT:
    """A tree like params with True at the weights that weight decay shrinks, by declaration."""
    return _marked(params, None, None, {}, "decay")


def trained_mask(params: ParametersT, config: Any) -> ParametersT:
    """A tree like params with True at the weights that gradients change, by declaration."""
    return _marked(params, config, config, {}, "trained")


@dataclasses.dataclass(frozen=True)
class Axes:
    """The named axes of a weight as it is held: of a stacked layer's, the first is "layers"."""

    names: tuple[str, ...]
    fan_in: tuple[str, ...]
    """Those that are summed over when the weight is applied; none of a weight that is no linear map's."""
    batch: tuple[str, ...]
    """Those along which separate matrices are stacked."""
    in_layer: bool
    """True if it belongs to a layer of a stack, in either layout."""

    @property
    def stacked(self) -> bool:
        """True if it holds all the layers of a stack."""
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
            values[field.name] = Axes((*leading, *kind.dim_str.split()), rule["fan_in"], rule["batch_axis"], in_layer)
        else:
            repeated = rule["repeat"] is not None
            is_stacked = rule["stacked"] or (repeated and type(value) is not tuple and not _holds_stacked(value))
            values[field.name] = _axes(value, ("layers",) if is_stacked else leading, in_layer or repeated)
    return type(node)(**values)


def _holds_stacked(node: Parameters) -> bool:
    """True if it is the fields of a tree whose arrays have a leading axis of layers."""
    return any(field.metadata.get("stacked") for field in dataclasses.fields(node))


def _marked(node: Any, owner: Any, model: Any, rule: Any, mark: str) -> Any:
    """A tree like node with each weight's mark, read off its declaration."""
    if node is None:
        return None
    if isinstance(node, tuple):
        own = attribute(owner, rule["repeat"]) if owner is not None and rule.get("repeat") else None
        each = own if isinstance(own, tuple) else (owner,) * len(node)
        return tuple(_marked(item, one, one, {}, mark) for item, one in zip(node, each, strict=True))
    if isinstance(node, Parameters):
        if owner is not None and rule.get("component"):
            owner = component_of(owner, model, rule["component"])
        elif owner is not None and rule.get("config"):
            owner = model = attribute(owner, rule["config"])
        elif owner is not None and rule.get("repeat") and isinstance(own := attribute(owner, rule["repeat"]), tuple):
            owner = model = own[0]  # layers that are stacked have one config, as far as weights go
        fields = dataclasses.fields(node)
        return type(node)(**{f.name: _marked(getattr(node, f.name), owner, model, f.metadata, mark) for f in fields})
    return attribute(owner, rule[mark])
