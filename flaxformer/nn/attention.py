"""Scaled dot-product attention: softmax(Q Kᵀ · scale) V, written for one head and mapped over heads and batch.

Source: Vaswani et al. 2017, equation 1; "What Happens in A Transformer Layer", equations 1 to 3.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from flaxformer.nn.fused_attention import AttentionCall, fused_attention, unsupported_reason
from flaxformer.nn.masks import Mask

Implementation = Literal["reference", "xla", "cudnn", "auto"]


def masked_softmax(logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None) -> Float[Array, "*rows S"]:
    """softmax over the last axis, restricted to where mask is True, in float32 or wider.

    A row without any True is all zeros, forward and backward: nothing may be attended to, so nothing is.
    """
    exponentials, total = _exponentials(logits, mask)
    return exponentials / total


def _exponentials(
    logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None
) -> tuple[Float[Array, "*rows S"], Float[Array, "*rows 1"]]:
    """e^(logits − their peak) where mask is True and 0 elsewhere, and their sum over the last axis, 1 where it is 0."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # A finite floor: with −inf, a row that is masked whole would be −inf − (−inf) = NaN.
    floor = jnp.finfo(logits.dtype).min
    if mask is not None:
        logits = jnp.where(mask, logits, floor)
    peak = jax.lax.stop_gradient(logits.max(-1, keepdims=True, initial=floor))
    exponentials = jnp.exp(logits - peak)
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
    **numbers: Any,
) -> Float[Array, "... T S"]:
    """A = softmax_over_S(Z), over the keys that mask allows, for the logits Z of `attention_logits`."""
    return masked_softmax(attention_logits(query, key, bias, **numbers), mask)


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
    """One head, as the texts write it: y = softmax(Q Kᵀ · scale) V."""
    weights = attention_weights(query, key, mask, bias, scale=scale, logit_cap=logit_cap)
    return (weights @ value).astype(value.dtype)


def _reference(
    query: Float[Array, "B K G T d_k"],
    key: Float[Array, "B K S d_k"],
    value: Float[Array, "B K S d_v"],
    mask: Bool[Array, "B K G T S"] | None,
    bias: Float[Array, "B K G T S"] | None,
    **numbers: Any,
) -> Float[Array, "B K G T d_v"]:
    """`attend`, mapped over the queries that share a key-value head, the key-value heads, and the batch."""
    axes = (0, None, None, None if mask is None else 0, None if bias is None else 0)
    group: Callable[..., Array] = jax.vmap(functools.partial(attend, **numbers), in_axes=axes)
    return jax.vmap(jax.vmap(group))(query, key, value, mask, bias)


def _xla(
    query: Float[Array, "B K G T d_k"],
    key: Float[Array, "B K S d_k"],
    value: Float[Array, "B K S d_v"],
    mask: Bool[Array, "B K G T S"] | None,
    bias: Float[Array, "B K G T S"] | None,
    **numbers: Any,
) -> Float[Array, "B K G T d_v"]:
    """The same products on whole arrays; the queries of a group meet one key and value by broadcasting.

    What is divided by the sum of a row is the mixed values [T, d_v], not the weights [T, S]: so the backward pass
    takes its sums over d_v too, and a step of training on a CPU is an eighth faster.
    """
    exponentials, total = _exponentials(attention_logits(query, key[:, :, None], bias, **numbers), mask)
    return (exponentials @ value[:, :, None] / total).astype(value.dtype)


BACKENDS: dict[str, Callable[..., Array]] = {"reference": _reference, "xla": _xla, "auto": _xla}


def dot_product_attention(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    value: Float[Array, "*batch S K d_v"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    logit_cap: float | Float[Array, ""] | None = None,
    implementation: Implementation = "auto",
) -> Float[Array, "*batch T N d_v"]:
    """Multi-head attention on [..., length, heads, width] arrays.

    For each head, y = softmax(cap(Q Kᵀ · scale) + bias) V over the keys that mask allows.

    Args:
      query, key, value: K must divide N; query head n reads key-value head n // (N / K). T and S, and
        d_k and d_v, may differ.
      mask: True = attend. A `Mask`, or booleans that broadcast to [..., N, T, S]. A query that may attend
        to nothing gets zeros; what no query may attend to, NaN included, reaches neither output nor gradient.
      bias: added to the logits; broadcasts to [..., N, T, S].
      scale: multiplies Q Kᵀ; None means 1/√d_k. It may be traced.
      logit_cap: bounds the scaled logits smoothly to ±logit_cap.
      implementation: "reference" maps the one-head text, "xla" multiplies whole arrays, "cudnn" is one fused kernel
        for some calls on GPUs (`nn.fused_attention`), "auto" takes the fastest that takes the call.

    Raises:
      ValueError: shapes that do not fit together, named with their sizes; "cudnn" for what it does not take.
    """
    _check_shapes(query, key, value, implementation)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if implementation in ("auto", "cudnn"):
        why_not = unsupported_reason(AttentionCall(query, key, value, mask, bias, logit_cap))
        if why_not is None:
            return fused_attention(query, key, value, mask, scale)  # type: ignore[arg-type]
        if implementation == "cudnn":
            raise ValueError(f"implementation is 'cudnn': {why_not}")
    full = _full_shape(query, key)
    mask = _as_booleans(mask, full)
    if mask is not None:
        key, value = without_unreachable(mask, key, value)
    q, k, v = _grouped(_heads_first(query), key.shape[-2]), _heads_first(key), _heads_first(value)
    spread = (_broadcast_grouped(mask, full, key.shape[-2]), _broadcast_grouped(bias, full, key.shape[-2]))
    mixed = BACKENDS[implementation](q, k, v, *spread, scale=scale, logit_cap=logit_cap)
    return _heads_last(mixed, query.shape[:-1])


def dot_product_logits(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    logit_cap: float | Float[Array, ""] | None = None,
) -> Float[Array, "*batch N T S"]:
    """The logits of `dot_product_attention` (same arguments), cap(Q Kᵀ · scale) + bias, of every pair, masked or not.

    Of the mask, they know no more than that what no query may attend to is not read: there they are those of a key 0.
    """
    _check_shapes(query, key, key, "xla")
    full = _full_shape(query, key)
    mask = _as_booleans(mask, full)
    if mask is not None:
        (key,) = without_unreachable(mask, key)
    q, k = _grouped(_heads_first(query), key.shape[-2]), _heads_first(key)[:, :, None]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    grouped_bias = _broadcast_grouped(bias, full, key.shape[-2])
    return attention_logits(q, k, grouped_bias, scale=scale, logit_cap=logit_cap).reshape(full)


def dot_product_weights(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch S K d_k"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    **options: Any,
) -> Float[Array, "*batch N T S"]:
    """The weights of `dot_product_attention` (same arguments): what each query takes from each key."""
    _check_shapes(query, key, key, "xla")
    mask = _as_booleans(mask, _full_shape(query, key))
    return weights_of_logits(dot_product_logits(query, key, mask=mask, **options), mask, query.shape[:-3])


def weights_of_logits(
    logits: Float[Array, "*#batch N T S"], mask: Mask | Bool[Array, "..."] | None, batch: tuple[int, ...]
) -> Float[Array, "*batch N T S"]:
    """Attention weights from logits, whether computed from queries and keys or fixed: softmax over the allowed keys."""
    full = (*batch, *logits.shape[-3:])
    logits = _with_rank(logits, len(full))
    allowed = _as_booleans(mask, full)
    return masked_softmax(jnp.broadcast_to(logits, full), None if allowed is None else jnp.broadcast_to(allowed, full))


def apply_weights(
    weights: Float[Array, "*batch N T S"],
    value: Float[Array, "*batch S K d_v"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch T N d_v"]:
    """y_t = Σ_s A[t, s] v_s for every head; with a mask, what no query may attend to is not read, even if it is NaN."""
    mask = _as_booleans(mask, weights.shape)
    if mask is not None:
        (value,) = without_unreachable(mask, value)
    *batch, N, T, S = weights.shape
    weights = _grouped(weights.reshape(math.prod(batch), N, T, S), value.shape[-2])
    mixed = (weights @ _heads_first(value)[:, :, None]).astype(value.dtype)
    return _heads_last(mixed, (*batch, T, N))


def _full_shape(query: Array, key: Array) -> tuple[int, ...]:
    """[..., N, T, S], the shape of the logits."""
    *batch, T, N, _ = query.shape
    return (*batch, N, T, key.shape[-3])


def _as_booleans(mask: Mask | Array | np.ndarray | None, full: tuple[int, ...]) -> Array | None:
    """The mask as booleans of the rank of `full`."""
    mask = mask.matrix(*full[-2:]) if isinstance(mask, Mask) else mask
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"mask has dtype {mask.dtype}; expected bool, True = attend (numbers belong in bias)")
    return None if mask is None else _with_rank(jnp.asarray(mask), len(full))


def _heads_first(x: Float[Array, "*batch length heads d"]) -> Float[Array, "B heads length d"]:
    return jnp.swapaxes(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]), 1, 2)


def _grouped(x: Shaped[Array, "B N T d"], key_value_heads: int) -> Shaped[Array, "B K G T d"]:
    """The queries that share a key-value head, side by side."""
    return x.reshape(x.shape[0], key_value_heads, x.shape[1] // key_value_heads, *x.shape[2:])


def _broadcast_grouped(x: Array | None, full: tuple[int, ...], key_value_heads: int) -> Array | None:
    """A mask or bias over all of [B, K, G, T, S]."""
    if x is None:
        return None
    x = jnp.broadcast_to(_with_rank(x, len(full)), full)
    return _grouped(x.reshape(math.prod(full[:-3]), *full[-3:]), key_value_heads)


def _heads_last(mixed: Float[Array, "B K G T d_v"], shape: tuple[int, ...]) -> Float[Array, "*batch T N d_v"]:
    *batch, T, N = shape
    return jnp.swapaxes(mixed.reshape(math.prod(batch), N, T, mixed.shape[-1]), 1, 2).reshape(*shape, mixed.shape[-1])


def _with_rank(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def without_unreachable(mask: Array, *keys_or_values: Float[Array, "*batch S K _"]) -> tuple[Array, ...]:
    """Zero the keys and values that no query of their heads attends to: 0 · NaN is NaN, masking is not enough."""
    *batch, N, T, S = mask.shape
    K = 1 if N == 1 else keys_or_values[0].shape[-2]
    read = mask.reshape(*batch, K, N // K, T, S).any((-3, -2))
    reachable = jnp.swapaxes(read, -1, -2)[..., None]
    return tuple(jnp.where(reachable, x, 0) for x in keys_or_values)


def _check_shapes(query: Array, key: Array, value: Array, implementation: str) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if implementation not in get_args(Implementation):
        raise ValueError(f"implementation is {implementation!r}; expected one of {', '.join(get_args(Implementation))}")
    if min(query.ndim, key.ndim, value.ndim) < 3 or not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise ValueError(f"expected [..., length, heads, width] with equal leading axes; got {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key differ in width; got {shapes}")
    if key.shape[-3:-1] != value.shape[-3:-1] or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"key and value need equal length and heads, and heads that divide the query's; got {shapes}")
