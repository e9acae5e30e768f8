"""The layout of layers that an optimizer sees, whatever the layout in which a model stores them."""

from typing import Literal

import jax
import optax
import optax.contrib
from jaxtyping import PyTree

from flaxformer.core.weight_axes import Axes, axes
from flaxformer.model.weights import Transformer, stack_as, with_layout

LayerView = Literal["unrolled", "mapped", "stored"]
"""Layout of the layers in the trees that a transform gets; see `per_layer`."""

GATES = "gates"
"""The axis of a recurrent cell's matrices along which each gate has a matrix of its own."""
ALONE = "alone"


def per_layer(transform: optax.GradientTransformation, layers: LayerView = "unrolled") -> optax.GradientTransformation:
    """Return the transform for trees of weights in any layout, such that its updates do not depend on the layout.

    Args:
      layers: "unrolled" gives the transform a tuple with one tree per layer: right for every transform. "mapped"
        applies it to the stacked layers by `vmap`: right if it treats each weight alone, compiled once for all layers.
        "stored" leaves the tree as it is: right if it treats each number alone, or the axis of layers by itself.
    """
    if layers == "stored":
        return transform
    return _over_each_layer(transform) if layers == "mapped" else _over_unrolled_layers(transform)


def _over_unrolled_layers(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transform that gets unrolled layers; its updates are stacked again like the updates that it is given."""

    def init(params: PyTree) -> optax.OptState:
        return transform.init(_unroll(params))

    def update(updates: PyTree, state: optax.OptState, params: PyTree = None) -> tuple[PyTree, optax.OptState]:
        changes, state = transform.update(_unroll(updates), state, _unroll(params))
        return stack_as(changes, updates) if isinstance(updates, Transformer) else changes, state

    return optax.GradientTransformation(init, update)


def _unroll(tree: PyTree) -> PyTree:
    return with_layout(tree, "unrolled") if isinstance(tree, Transformer) else tree


def _over_each_layer(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transform that treats each weight alone, applied to each layer's own part of a stacked weight.

    Norms and factors of a weight (trust ratios, row and column means) are then those that unrolled layers have.
    """
    mapped = optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))
    # Decoder and encoder may differ in depth, and one vmap has one size: a partition for each depth.
    return optax.GradientTransformation(
        lambda params: _partition(params, transform, mapped).init(params),
        lambda updates, state, params=None: _partition(updates, transform, mapped).update(updates, state, params),
    )


def _partition(
    tree: PyTree, single: optax.GradientTransformation, mapped: optax.GradientTransformation
) -> optax.GradientTransformation:
    depths = jax.tree.map(
        lambda weight, weight_axes: f"{len(weight)} layers" if weight_axes.stacked else ALONE, tree, axes(tree)
    )
    distinct_depths = sorted(set(jax.tree.leaves(depths)))
    return optax.partition({depth: single if depth == ALONE else mapped for depth in distinct_depths}, depths)


def muon_labels(params: PyTree) -> PyTree[str]:
    """ "matrix" at the weights that have `matrix_dimensions`, "other" at the rest."""
    return jax.tree.map(lambda weight_axes: "matrix" if _is_matrix(weight_axes) else "other", axes(params))


def _is_matrix(weight_axes: Axes) -> bool:
    return weight_axes.in_layer and all(_dimensions(weight_axes))


def _dimensions(weight_axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes that the product sums over, and axes of its result; of two axes of one name, the first is summed over."""
    remaining = {
        place: name for place, name in enumerate(weight_axes.names) if name not in ("layers", GATES, *weight_axes.batch)
    }
    summed = []
    for wanted in weight_axes.fan_in:
        place = next((place for place, name in remaining.items() if name == wanted), None)
        if place is not None:
            summed.append(place)
            del remaining[place]
    return tuple(summed), tuple(remaining)


def matrix_dimensions(params: PyTree) -> PyTree:
    """The axes that each matrix of a layer sums over, and the axes of its result; None at all other weights.

    A map into or out of heads is one matrix, all heads together; each gate, each layer and each entry of a
    `batch_axis`, such as an expert, has a matrix of its own. Embeddings, heads and other weights outside the layers are
    not matrices here, nor are biases and gains.
    """

    def dimensions(weight_axes: Axes) -> optax.contrib.MuonDimensionNumbers | None:
        if not _is_matrix(weight_axes):
            return None
        return optax.contrib.MuonDimensionNumbers(*_dimensions(weight_axes))

    return jax.tree.map(dimensions, axes(params))
