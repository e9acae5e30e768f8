"""Adapters: trained functions of frozen weights, such as LoRA, for weights that patterns of paths choose.

The tree of trained weights has an `AdaptedWeight` in the place of each such weight; `merge` gives the weights that the
model applies. An adapter is written for one matrix and mapped over layers and experts, so it works for every
architecture. The frozen weight, and all weights that the adapter does not train, have no state of the optimizer.
"""

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flaxformer.core.params import AdaptedWeight, fold_in_name, path_name
from flaxformer.core.patterns import matches
from flaxformer.core.struct import Config, leaf, static
from flaxformer.core.weight_axes import Axes, axes
from flaxformer.model.weights import Transformer

T = TypeVar("T")


class Adapter(Config):
    """Base of the adapters: the weight that the model applies is a function of a frozen weight and of trained arrays.

    weights: patterns of the paths of the weights with an adapter, such as "blocks/*/attention/query"; each is a matrix.

    trained: patterns of further weights, which are trained whole; all others are frozen.
    """

    is_abstract: ClassVar[bool] = True
    weights: tuple[str, ...] = static()
    trained: tuple[str, ...] = static(())

    def init(self, key: Array, weight: Float[Array, "n_in n_out"]) -> dict[str, Array]:
        """Return the initial values of the trained arrays of one matrix, by name."""
        raise NotImplementedError(f"{type(self).__name__} does not define `init`")

    def apply(self, weight: Float[Array, "n_in n_out"], trained: dict[str, Array]) -> Float[Array, "n_in n_out"]:
        """Return the matrix that the model applies, from the frozen matrix and the trained arrays."""
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")


class LoRA(Adapter):
    """W + (alpha / rank) A B, with A ~ N(0, 1 / n_in) [n_in, rank] and B = 0 [rank, n_out] (Hu et al. 2022, section 4).

    In the paper's notation, which writes h = W x, these are the transposed matrices: ΔW = B A. A map into or out of
    heads is one matrix, all heads together.
    """

    rank: int = static(8, at_least=1)
    alpha: float = leaf(16.0, above=0)

    def init(self, key: Array, weight: Float[Array, "n_in n_out"]) -> dict[str, Array]:
        n_in, n_out = weight.shape
        down = jax.random.normal(key, (n_in, self.rank), jnp.float32) / jnp.sqrt(n_in)
        return {"A": down, "B": jnp.zeros((self.rank, n_out), jnp.float32)}

    def apply(self, weight: Float[Array, "n_in n_out"], trained: dict[str, Array]) -> Float[Array, "n_in n_out"]:
        return weight + self.alpha / self.rank * (trained["A"] @ trained["B"])


def adapt(params: Transformer, adapter: Adapter | None, key: Array) -> Transformer:
    """Return the weights, of unrolled layers, with an `AdaptedWeight` in the place of each that the adapter names."""
    if adapter is None:
        return params

    def begin(path: jax.tree_util.KeyPath, weight: Array, weight_axes: Axes) -> Array | AdaptedWeight:
        name = path_name(path)
        if not matches(name, adapter.weights):
            return weight
        matrices = _matrices(weight, weight_axes)
        lead = matrices.shape[:-2]
        keys = jax.random.split(fold_in_name(key, name), lead)
        return AdaptedWeight(base=weight, adapter=_over(len(lead), adapter.init)(keys, matrices))

    return jax.tree_util.tree_map_with_path(begin, params, axes(params))


def merge(params: Transformer, adapter: Adapter | None) -> Transformer:
    """Return the weights that the model applies: those with an adapter are computed, all others are unchanged."""
    if adapter is None:
        return params

    def weight(node: Array | AdaptedWeight, weight_axes: PyTree) -> Array:
        if not isinstance(node, AdaptedWeight):
            return node
        base = jax.lax.stop_gradient(node.base)
        matrices = _matrices(base, weight_axes.base)
        merged = _over(matrices.ndim - 2, adapter.apply)(matrices, node.adapter)
        return _from_matrices(merged, base.shape, weight_axes.base)

    return jax.tree.map(weight, params, axes(params), is_leaf=is_adapted)


def is_adapted(node: object) -> bool:
    """True for a weight with an adapter."""
    return isinstance(node, AdaptedWeight)


def _over(count: int, function: Callable[..., T]) -> Callable[..., T]:
    """A function mapped over this number of leading axes of all its arguments."""
    for _ in range(count):
        function = jax.vmap(function)
    return function


def _matrices(weight: Array, weight_axes: Axes) -> Float[Array, "*stacked n_in n_out"]:
    """A weight as one matrix, or as stacked ones."""
    stacked, summed, result = weight_axes.as_matrix or ((), (), ())
    ordered = jnp.transpose(weight, (*stacked, *summed, *result))
    lead = [weight.shape[place] for place in stacked]
    return ordered.reshape(*lead, math.prod(weight.shape[place] for place in summed), -1)


def _from_matrices(matrices: Array, shape: tuple[int, ...], weight_axes: Axes) -> Array:
    """The inverse of `_matrices`."""
    order = [place for places in weight_axes.as_matrix or () for place in places]
    ordered = matrices.reshape([shape[place] for place in order])
    return jnp.transpose(ordered, [order.index(place) for place in range(len(shape))])
