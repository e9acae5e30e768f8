"""Scaled dot-product attention: softmax(Q Kᵀ · scale) V, written for one head and mapped over heads and batch.

Source: Vaswani et al. 2017, equation 1; "What Happens in A Transformer Layer", equations 1 to 3.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.formulations import queries, with_formulations
from flaxformer.nn.linear import linear
from flaxformer.nn.widen import widen


@with_formulations("query map", queries.FORMULATIONS)
def map_queries(
    x: Float[Array, "*batch T D"],
    weight: Float[Array, "D N d_k"],
    bias: Float[Array, "N d_k"] | None,
    scale: float | Float[Array, ""],
) -> tuple[Float[Array, "*batch T N d_k"], float | Float[Array, ""]]:
    """Return Q = X W_Q + b, and the scale of the logits Q Kᵀ."""
    return linear(x, weight, bias), scale


def masked_softmax(logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None) -> Float[Array, "*rows S"]:
    """softmax over the last axis, restricted to where mask is True, in float32 or wider.

    A row without any True is all zeros, with zero gradients.
    """
    exponentials, total = masked_exponentials(logits, mask)
    return exponentials / total


def masked_exponentials(
    logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None
) -> tuple[Float[Array, "*rows S"], Float[Array, "*rows 1"]]:
    """Numerator and denominator of `masked_softmax`.

    e^(logits − maximum of the row) where mask is True and 0 elsewhere; and their sum, or 1 where that is 0.
    """
    logits = widen(logits)
    # A finite minimum: with −inf, a row without any True would be −inf − (−inf) = NaN.
    lowest = jnp.finfo(logits.dtype).min
    if mask is not None:
        logits = jnp.where(mask, logits, lowest)
    maximum = jax.lax.stop_gradient(logits.max(-1, keepdims=True, initial=lowest))
    exponentials = jnp.exp(logits - maximum)
    if mask is not None:
        exponentials = jnp.where(mask, exponentials, 0)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials, jnp.where(total > 0, total, 1)


def attention_logits(
    query: Float[Array, "*#batch T d_k"],
    key: Float[Array, "*#batch S d_k"],
    bias: Float[Array, "*#batch T S"] | None = None,
    *,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "... T S"]:
    """Z = cap(Q Kᵀ · scale) + bias, where cap(z) = logit_cap · tanh(z / logit_cap), in float32 or wider."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    logits = jnp.matmul(query, jnp.matrix_transpose(key), preferred_element_type=wide) * scale
    if logit_cap is not None:
        logits = logit_cap * jnp.tanh(logits / logit_cap)
    return logits if bias is None else logits + bias


def attention_weights(
    query: Float[Array, "*#batch T d_k"],
    key: Float[Array, "*#batch S d_k"],
    mask: Bool[Array, "*#batch T S"] | None = None,
    bias: Float[Array, "*#batch T S"] | None = None,
    *,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "... T S"]:
    """A = softmax_over_S(Z), over the keys that mask allows, for the logits Z of `attention_logits`."""
    return masked_softmax(attention_logits(query, key, bias, scale=scale, logit_cap=logit_cap), mask)


def attend(
    query: Float[Array, "T d_k"],
    key: Float[Array, "S d_k"],
    value: Float[Array, "S d_v"],
    mask: Bool[Array, "T S"] | None = None,
    bias: Float[Array, "T S"] | None = None,
    *,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "T d_v"]:
    """One head: Y = softmax(cap(Q Kᵀ · scale) + bias) V, over the keys that mask allows."""
    weights = attention_weights(query, key, mask, bias, scale=scale, logit_cap=logit_cap)
    return (weights @ value).astype(value.dtype)


def grouped_attention(
    query: Float[Array, "B K G T d_k"],
    key: Float[Array, "B K S d_k"],
    value: Float[Array, "B K S d_v"],
    mask: Bool[Array, "B K G T S"] | None = None,
    bias: Float[Array, "B K G T S"] | None = None,
    *,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "B K G T d_v"]:
    """`attend`, mapped over the G query heads that share a key-value head, the K key-value heads, and the batch."""
    head = functools.partial(attend, scale=scale, logit_cap=logit_cap)
    group = jax.vmap(head, in_axes=(0, None, None, None if mask is None else 0, None if bias is None else 0))
    return jax.vmap(jax.vmap(group))(query, key, value, mask, bias)
