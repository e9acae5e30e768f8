"""Cross-layer attention: neighbouring layers read the keys and values of the first of them (CLA).

    layer l: softmax(Q_l K_gᵀ / √d) V_g, with the keys and values of layer g = l − (l mod every)

Family: attention
Source: Brandon et al. 2024, "Reducing Transformer Key-Value Cache Size with Cross-Layer Attention", arXiv:2405.12981.
Claim: a cache of keys and values of half the size at nearly the same accuracy, in models of 1B and 3B weights.
Cost: less the matrices of keys and values in all layers but the first of each group; the cache is divided by `every`.
Verified: two layers in NumPy, of which the second reads the keys and values of the first.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Aux, Block, Context, KeysValues, param, static


class KeysValuesForLayers(Attention):
    """Attention of the first layer of each group of `every`, whose keys and values its group reads."""

    is_first: ClassVar[bool] = True
    every: int = static(2, at_least=1)

    class Weights(Attention.Weights):
        """Weights of `Attention`; those of keys and values in the first layer of a group alone."""

        value: Float[Array, "d_source key_value_heads d_value"] | None = param(
            fan_in="d_source", init="branch", when="is_first"
        )
        value_bias: Float[Array, "key_value_heads d_value"] | None = param(init="zeros", decay=False, when="has_bias")

    has_key = property(lambda self: self.is_first)
    has_bias = property(lambda self: self.is_first and self.bias)

    def shared_state(self, sizes: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Any]:
        axes = self.axis_sizes(sizes)
        shape = (*batch, -(-sizes["layers"] // self.every), capacity, axes["key_value_heads"])
        key, value = (jnp.zeros((*shape, axes[width]), dtype) for width in ("d_head", "d_value"))
        return {"keys_values": KeysValues(key, value)}

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[()]:
        return ()

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        caches, group = context.carried["keys_values"], context.layer // self.every
        cache = jax.tree.map(lambda old: jax.lax.dynamic_index_in_dim(old, group, old.ndim - 4, keepdims=False), caches)
        if self.is_first:
            new = self.keys_and_values(weights, x, context)
            if context.valid is not None:
                is_real = context.valid[..., None, None]
                new = jax.tree.map(lambda z: jnp.where(is_real, z, 0), new)
            start = 0 if context.offset is None else context.offset
            cache = jax.tree.map(
                lambda old, z: jax.lax.dynamic_update_slice_in_dim(old, z.astype(old.dtype), start, old.ndim - 3),
                cache,
                new,
            )
            caches = jax.tree.map(
                lambda old, z: jax.lax.dynamic_update_index_in_dim(old, z, group, old.ndim - 4), caches, cache
            )
        y, aux = self.read(weights, x, cache, context)
        return y, aux.merge(Aux(carried={"keys_values": caches}))

    def step(self, weights: Any, x: Array, state: tuple[()], context: Context) -> tuple[Any, tuple[()]]:
        return self.apply(weights, x, context), state


class KeysValuesOfEarlierLayer(KeysValuesForLayers):
    """Attention to the keys and values of the first layer of the group."""

    is_first: ClassVar[bool] = False


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "pairs of layers": {
        "model.pattern": (Block(attention=KeysValuesForLayers), Block(attention=KeysValuesOfEarlierLayer))
    }
}
