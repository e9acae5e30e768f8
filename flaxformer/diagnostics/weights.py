"""Sums over the entries of trees like the weights: of every weight, of every module, of every layer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.diagnostics.places import ENCODER, in_layers, layer_of, stacked
from flaxformer.params import path_name


def sums(tree: Any, measure: Callable[[Array], Array]) -> dict[str, Array]:
    """measure(x), a sum over the entries of x, of every place of a tree like the weights; [L] for one in the layers.

    A place is a weight, "blocks/attention/query", or all that a path leads to: "blocks/attention", and "blocks".
    """
    found: dict[str, Array] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(stacked(tree)):
        name = path_name(path)
        value = jax.vmap(measure)(x) if in_layers(name) else measure(x)
        parts = name.split("/")
        # All of an encoder is no place: its layers have an axis of their own. Nor are all layers where each has places.
        first = (2 if parts[0] == ENCODER else 1) + (layer_of(name) is not None)
        for end in range(first, len(parts) + 1):
            place = "/".join(parts[:end])
            found[place] = found[place] + value if place in found else value
    return found


def norms(tree: Any) -> dict[str, Float[Array, "*L"]]:
    """The L2 norm √(Σ x²) of every place of a tree like the weights: the squares of a module's parts add up to its."""
    return {place: jnp.sqrt(total) for place, total in sums(tree, lambda x: jnp.square(x).sum()).items()}
