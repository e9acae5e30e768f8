"""Attention of one new token per sequence to the packed keys and values of a cache, in a layout made for CPUs."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.attention import attention_logits
from flaxformer.nn.formulations import Formulation
from flaxformer.nn.masks import Mask


def packed_attention(
    query: Float[Array, "*batch 1 N d_k"],
    key: Float[Array, "rows S d_k"],
    value: Float[Array, "rows S d_v"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*batch N 1 S"] | None = None,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch 1 N d_v"]:
    """`nn.dot_product.cached_attention` for T = 1.

    Keys and values enter one product each in the shape in which a decoding loop carries them, since XLA copies a
    carried array that is reshaped; and the sum of the weights divides the output, not the weights.
    """
    *batch, _, heads, _ = query.shape
    rows, length, _ = key.shape
    full = (*batch, heads, 1, length)

    def by_row(x: Array) -> Array:
        return jnp.broadcast_to(x.reshape((1,) * (len(full) - x.ndim) + x.shape), full).reshape(rows, -1, length)

    queries = query.reshape(rows, -1, query.shape[-1])
    logits = attention_logits(queries, key, None if bias is None else by_row(bias), scale=scale, logit_cap=logit_cap)
    allowed: Bool[Array, "rows G S"] | bool = True if mask is None else by_row(mask.matrix(1, length))
    # A finite minimum, as in `masked_softmax`: a row without any True is 0.
    logits = jnp.where(allowed, logits, jnp.finfo(logits.dtype).min)
    weights = jnp.where(allowed, jnp.exp(logits - logits.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    y = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=weights.dtype)
    return (y / jnp.where(total > 0, total, 1)).astype(value.dtype).reshape(*batch, 1, heads, value.shape[-1])


FORMULATIONS = {
    "packed": Formulation(
        packed_attention,
        gain="copies no cache: XLA copies an array that a loop carries and reshapes",
        unsupported_reason=lambda query, *_, **__: None if query.shape[-3] == 1 else "there are several queries",
    )
}
