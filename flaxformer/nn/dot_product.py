"""Multi-head attention on [..., length, heads, width] arrays: the equation of `nn.attention` for every head.

The kernels that compute it are in `nn.kernels`; logits and weights are here too, for whoever needs one of the steps.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.attention import attention_logits, masked_softmax
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.heads import (
    as_booleans,
    broadcast_grouped,
    group_heads,
    heads_first,
    heads_last,
    logits_shape,
    unpack_rows,
    with_rank,
    without_unreachable,
)
from flaxformer.nn.kernels import attention, packed
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.masks import Mask


def dot_product_attention(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    value: Float[Array, "*batch S K d_v"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    logit_cap: float | Float[Array, ""] | None = None,
    implementation: str = "auto",
) -> Float[Array, "*batch T N d_v"]:
    """Multi-head attention on [..., length, heads, width] arrays.

    For each head, y = softmax(cap(Q Kᵀ · scale) + bias) V over the keys that mask allows.

    Args:
      query, key, value: K must divide N; query head n reads key-value head n // (N / K). T and S, and
        d_k and d_v, may differ.
      mask: True = attend. A `Mask`, or booleans that broadcast to [..., N, T, S]. A query that may attend
        to nothing gets zeros; a key that no query may attend to, even NaN, reaches neither output nor gradient.
      bias: added to the logits; broadcasts to [..., N, T, S].
      scale: multiplies Q Kᵀ; None means 1/√d_k. It may be traced.
      logit_cap: bounds the scaled logits smoothly to ±logit_cap.
      implementation: a kernel of `nn.kernels`. "reference" maps the equation of one head, "xla" multiplies whole
        arrays, "chunked" computes tiles one after another, "cudnn", "splash" and "tokamax" are fused kernels for some
        calls on GPUs and TPUs, "auto" is the first of the table that takes the call and suits it.

    Raises:
      ValueError: shapes that do not fit together, named with their sizes; a kernel for what it does not take.
    """
    _check_shapes(query, key, value, implementation)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall(query, key, value, mask, bias, scale, logit_cap)
    return attention(call) if implementation == "auto" else attention.select(implementation, call)(call)


@with_formulations("attention to a cache", packed.FORMULATIONS)
def cached_attention(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "rows S d_k"],
    value: Float[Array, "rows S d_v"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*batch N T S"] | None = None,
    scale: float | Float[Array, ""],
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch T N d_v"]:
    """`dot_product_attention` to finite keys and values that are packed, one row per sequence and key-value head."""
    key, value = (unpack_rows(x, query.shape[:-3]) for x in (key, value))
    return dot_product_attention(query, key, value, mask=mask, bias=bias, scale=scale, logit_cap=logit_cap)


def dot_product_logits(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch N T S"]:
    """The logits of `dot_product_attention` (same arguments): cap(Q Kᵀ · scale) + bias.

    The mask is not applied to the logits. It only zeroes keys that no query can reach, so that NaN in padding does not
    leak.
    """
    _check_shapes(query, key, key, "xla")
    full = logits_shape(query, key)
    mask = as_booleans(mask, full)
    if mask is not None:
        (key,) = without_unreachable(mask, key)
    q, k = group_heads(heads_first(query), key.shape[-2]), heads_first(key)[:, :, None]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    grouped_bias = broadcast_grouped(bias, full, key.shape[-2])
    return attention_logits(q, k, grouped_bias, scale=scale, logit_cap=logit_cap).reshape(full)


def dot_product_weights(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch N T S"]:
    """The weights A of `dot_product_attention` (same arguments)."""
    _check_shapes(query, key, key, "xla")
    mask = as_booleans(mask, logits_shape(query, key))
    logits = dot_product_logits(query, key, mask=mask, bias=bias, scale=scale, logit_cap=logit_cap)
    return weights_of_logits(logits, mask, query.shape[:-3])


def weights_of_logits(
    logits: Float[Array, "*#batch N T S"], mask: Mask | Bool[Array, "..."] | None, batch: tuple[int, ...]
) -> Float[Array, "*batch N T S"]:
    """Attention weights from logits, whether computed from queries and keys or fixed: softmax over the allowed keys."""
    full = (*batch, *logits.shape[-3:])
    logits = with_rank(logits, len(full))
    allowed = as_booleans(mask, full)
    return masked_softmax(jnp.broadcast_to(logits, full), None if allowed is None else jnp.broadcast_to(allowed, full))


def apply_weights(
    weights: Float[Array, "*batch N T S"],
    value: Float[Array, "*batch S K d_v"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch T N d_v"]:
    """Y = A V for every head; with a mask, values that no query may attend to are not read, even if they are NaN."""
    mask = as_booleans(mask, weights.shape)
    if mask is not None:
        (value,) = without_unreachable(mask, value)
    *batch, N, T, S = weights.shape
    weights = group_heads(weights.reshape(math.prod(batch), N, T, S), value.shape[-2])
    mixed = (weights @ heads_first(value)[:, :, None]).astype(value.dtype)
    return heads_last(mixed, (*batch, T, N))


def _check_shapes(query: Array, key: Array, value: Array, implementation: str) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    names = ("reference", *attention.formulations, "auto")
    if implementation not in names:
        raise ValueError(f"implementation is {implementation!r}; expected one of {', '.join(names)}")
    if min(query.ndim, key.ndim, value.ndim) < 3 or not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise ValueError(f"expected [..., length, heads, width] with equal leading axes; got {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key differ in width; got {shapes}")
    if key.shape[-3:-1] != value.shape[-3:-1] or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"key and value need equal length and heads, and heads that divide the query's; got {shapes}")
