"""Places in a model: what is measured at each has a path as its name, and all layers of a stack share one place.

The place "blocks/attention/query" is that weight in every block, and its measurement has a leading axis L, first block
first; "encoder/blocks/attention/query" is its like in an encoder.
Where the layers of a stack differ in structure, each has places of its own, such as "blocks/3/attention/query", whose
measurements have no such axis.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax

from flaxformer.model.layout import Periods, unrolled
from flaxformer.params import stack

LAYERS = "blocks"
ENCODER = "encoder"
STACK = re.compile(rf"^((?:{ENCODER}/)?{LAYERS})(?:/(\d+))?(?=/|$)")
"""At the start of a place in a stack: the stack, and the number of a layer that has places of its own."""


def stacked(tree: Any) -> Any:
    """Weights, or intermediates, with the layers of every stack as one tree of arrays with a leading axis L.

    Layers that differ in structure or shapes stay a tuple.
    """
    changes: dict[str, Any] = {}
    layers = getattr(tree, LAYERS, None)
    layers = unrolled(layers) if isinstance(layers, Periods) else layers
    if isinstance(layers, tuple) and layers:
        changes[LAYERS] = stack(layers) if _are_alike(layers) else layers
    if getattr(tree, ENCODER, None) is not None:
        changes[ENCODER] = stacked(tree.encoder)
    return tree.replace(**changes)


def _are_alike(layers: tuple[Any, ...]) -> bool:
    shapes = [jax.tree.map(lambda x: x.shape, layer) for layer in layers]
    return all(shape == shapes[0] for shape in shapes)


def in_layers(place: str) -> bool:
    """True if a place is in every layer of a stack, so that what is measured there has the axis L."""
    match = STACK.match(place)
    return match is not None and match[2] is None


def layer_of(place: str) -> int | None:
    """The number of the layer that a place is in; None for a place in every layer, or in none."""
    match = STACK.match(place)
    return None if match is None or match[2] is None else int(match[2])


def in_any_layer(place: str) -> str:
    """The place without the number of a layer: "blocks/3/attention" gives "blocks/attention"."""
    return STACK.sub(r"\1", place)


def in_layer(place: str, layer: int) -> str:
    """The place in one layer alone: "blocks/attention" and 3 give "blocks/3/attention"."""
    return STACK.sub(rf"\1/{layer}", place)


def one_by_one(found: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements with those of every layer by themselves: {"blocks": [L]} gives "blocks/0", "blocks/1" …"""
    single: dict[str, Any] = {}
    for place, x in found.items():
        if in_layers(place):
            single |= {in_layer(place, layer): x[layer] for layer in range(len(x))}
        else:
            single[place] = x
    return single
