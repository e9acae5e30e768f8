"""Places in a model: what is measured at each has a path as its name, and all layers of a stack share one place.

The place "blocks/attention/query" is that weight in every block, and its measurement has a leading axis L, first block
first; "encoder/blocks/attention/query" is its like in an encoder. A recurrent model has `layers` in place of `blocks`.
"""

import re
from typing import Any

from jaxtyping import Array

from flaxformer.params import stack

LAYERS = ("blocks", "layers")
ENCODER = "encoder"


def stacked(tree: Any) -> Any:
    """Weights, or intermediates, with the layers of every stack as one tree of arrays with a leading axis L."""
    changes: dict[str, Any] = {}
    for name in LAYERS:
        layers = getattr(tree, name, None)
        if isinstance(layers, tuple) and layers:
            changes[name] = stack(layers)
    if getattr(tree, ENCODER, None) is not None:
        changes[ENCODER] = stacked(tree.encoder)
    return tree.replace(**changes)


def in_layers(place: str) -> bool:
    """Whether a place is in every layer of a stack."""
    return any(name in LAYERS for name in place.split("/"))


def in_layer(place: str, layer: int) -> str:
    """The place in one layer alone: "blocks/attention" and 3 give "blocks/3/attention"."""
    return re.sub(rf"\b({'|'.join(LAYERS)})\b", rf"\1/{layer}", place, count=1)


def one_by_one(found: dict[str, Array]) -> dict[str, Array]:
    """Measurements with those of every layer by themselves: {"blocks": [L]} gives "blocks/0", "blocks/1" …"""
    single: dict[str, Array] = {}
    for place, x in found.items():
        if in_layers(place):
            single |= {in_layer(place, layer): x[layer] for layer in range(len(x))}
        else:
            single[place] = x
    return single
