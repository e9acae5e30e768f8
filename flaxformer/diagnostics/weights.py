"""Sums and norms over trees with the structure of the weights, per weight, module and layer."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.core.params import path_name
from flaxformer.core.pytree import Node
from flaxformer.diagnostics.places import ENCODER, is_in_every_layer, layer_index, stack_layers


def sum_by_place(tree: Node, measure: Callable[[Array], Array]) -> dict[str, Array]:
    """Return the sums of measure(x) over the weights x of every place; within the layers, with a leading axis L.

    Args:
      tree: weights, or a tree of the same structure.
      measure: a sum over the entries of an array.

    Returns:
      A sum for each weight, such as "blocks/attention/query", and for each beginning of its path: "blocks/attention"
      and "blocks".
    """
    sums: dict[str, Array] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(stack_layers(tree)):
        name = path_name(path)
        value = jax.vmap(measure)(x) if is_in_every_layer(name) else measure(x)
        parts = name.split("/")
        # "encoder" is not a place, since its layers have an axis of their own; nor is "blocks" if layers have places.
        first = (2 if parts[0] == ENCODER else 1) + (layer_index(name) is not None)
        for end in range(first, len(parts) + 1):
            place = "/".join(parts[:end])
            sums[place] = sums[place] + value if place in sums else value
    return sums


def norms_by_place(tree: Node) -> dict[str, Float[Array, "*L"]]:
    """Return the L2 norm √(Σ x²) of every place; the square of a module's norm is the sum over its weights."""
    return {place: jnp.sqrt(total) for place, total in sum_by_place(tree, lambda x: jnp.square(x).sum()).items()}
