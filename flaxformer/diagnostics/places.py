"""Places: paths that name the weights and activations of a model.

Layers with the same structure share places: "blocks/attention/query" is that weight of every block, and a measurement
of it has a leading axis L in the order of the layers. "encoder/blocks/attention/query" is the same in an encoder. If
layers differ in structure, each has its own places, such as "blocks/3/attention/query", and there is no axis L.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Array, PyTree

from flaxformer.core.params import stack
from flaxformer.core.pytree import Node
from flaxformer.model.layout import Periods, unroll

NodeT = TypeVar("NodeT", bound=Node)
ArrayT = TypeVar("ArrayT", Array, np.ndarray)

LAYERS = "blocks"
ENCODER = "encoder"
STACK = re.compile(rf"^((?:{ENCODER}/)?{LAYERS})(?:/(\d+))?(?=/|$)")
"""Pattern of a place in a stack: the stack, then the index of a layer that has its own places."""


def stack_layers(tree: NodeT) -> NodeT:
    """Return weights or intermediates with the layers of every stack as one tree of arrays [L, ...].

    Layers that differ in structure or shapes stay a tuple.
    """
    changes: dict[str, PyTree] = {}
    layers = getattr(tree, LAYERS, None)
    layers = unroll(layers) if isinstance(layers, Periods) else layers
    if isinstance(layers, tuple) and layers:
        changes[LAYERS] = stack(layers) if _are_alike(layers) else layers
    encoder: Node | None = getattr(tree, ENCODER, None)
    if encoder is not None:
        changes[ENCODER] = stack_layers(encoder)
    return tree.replace(**changes)


def _are_alike(layers: tuple[PyTree, ...]) -> bool:
    """True if layers have the same structure and shapes."""
    shapes = [jax.tree.map(lambda x: x.shape, layer) for layer in layers]
    return all(shape == shapes[0] for shape in shapes)


def is_in_every_layer(place: str) -> bool:
    """True if a place is in every layer of a stack, so that its measurements have the axis L."""
    match = STACK.match(place)
    return match is not None and match[2] is None


def layer_index(place: str) -> int | None:
    """Return the index of the layer that a place is in; None for a place in every layer or outside of the layers."""
    match = STACK.match(place)
    return None if match is None or match[2] is None else int(match[2])


def without_layer(place: str) -> str:
    """Return the place without the index of a layer: "blocks/3/attention" gives "blocks/attention"."""
    return STACK.sub(r"\1", place)


def place_in_layer(place: str, layer: int) -> str:
    """Return the place in one layer: "blocks/attention" and 3 give "blocks/3/attention"."""
    return STACK.sub(rf"\1/{layer}", place)


def split_layers(measurements: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """Return measurements by the place in each layer: {"blocks": [L]} gives {"blocks/0": [], "blocks/1": [], …}."""
    single: dict[str, ArrayT] = {}
    for place, x in measurements.items():
        if is_in_every_layer(place):
            single |= {place_in_layer(place, layer): x[layer] for layer in range(len(x))}
        else:
            single[place] = x
    return single
