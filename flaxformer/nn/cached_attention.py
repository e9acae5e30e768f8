"""Attention of one token a sequence to the keys and values of a cache."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.attention import attention_logits
from flaxformer.nn.masks import Mask


def cached_attention(
    query: Float[Array, "*batch 1 N d_k"],
    key: Float[Array, "rows S d_k"],
    value: Float[Array, "rows S d_v"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*batch N 1 S"] | None = None,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch 1 N d_v"]:
    """`dot_product_attention` where T is 1, the key-value heads of all sequences are rows, and values are finite.

    Written for CPUs: keys and values meet one product each in the very shape that a loop carries them in, since XLA
    copies a carried array that is reshaped on its way; and the weights are not divided by their sum, the result is.
    """
    *batch, _, heads, _ = query.shape
    rows, slots, _ = key.shape
    full = (*batch, heads, 1, slots)

    def by_row(x: Array) -> Array:
        return jnp.broadcast_to(x.reshape((1,) * (len(full) - x.ndim) + x.shape), full).reshape(rows, -1, slots)

    queries = query.reshape(rows, -1, query.shape[-1])
    logits = attention_logits(queries, key, None if bias is None else by_row(bias), scale=scale, logit_cap=logit_cap)
    allowed: Bool[Array, "rows G S"] | bool = True if mask is None else by_row(mask.matrix(1, slots))
    # A finite floor, as in `masked_softmax`: a row that is masked whole is 0.
    logits = jnp.where(allowed, logits, jnp.finfo(logits.dtype).min)
    weights = jnp.where(allowed, jnp.exp(logits - logits.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    mixed = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=weights.dtype)
    return (mixed / jnp.where(total > 0, total, 1)).astype(value.dtype).reshape(*batch, 1, heads, value.shape[-1])
