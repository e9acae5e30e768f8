"""Attention by plain matrix products: the equation mapped over heads, and the same on whole arrays."""

from jaxtyping import Array, Bool, Float

from flaxformer.nn.attention import attention_logits, grouped_attention, masked_exponentials
from flaxformer.nn.heads import (
    as_booleans,
    broadcast_grouped,
    group_heads,
    heads_first,
    heads_last,
    logits_shape,
    without_unreachable,
)
from flaxformer.nn.kernels.call import AttentionCall


def reference_attention(call: AttentionCall) -> Float[Array, "*batch T N d_v"]:
    """The equation of `nn.attention`, mapped over heads and batch."""
    return _heads_last(grouped_attention(*_operands(call), scale=call.scale, logit_cap=call.logit_cap), call)


def xla_attention(call: AttentionCall) -> Float[Array, "*batch T N d_v"]:
    """The same products on whole arrays; the queries of a group share a key and a value by broadcasting.

    The sum of a row divides the output [T, d_v] rather than the weights [T, S], so that the backward pass sums over d_v
    too; a step of training on a CPU is an eighth faster.
    """
    query, key, value, mask, bias = _operands(call)
    logits = attention_logits(query, key[:, :, None], bias, scale=call.scale, logit_cap=call.logit_cap)
    exponentials, total = masked_exponentials(logits, mask)
    return _heads_last((exponentials @ value[:, :, None] / total).astype(value.dtype), call)


def _operands(
    call: AttentionCall,
) -> tuple[
    Float[Array, "B K G T d_k"],
    Float[Array, "B K S d_k"],
    Float[Array, "B K S d_v"],
    Bool[Array, "B K G T S"] | None,
    Float[Array, "B K G T S"] | None,
]:
    """The arguments with query heads grouped by their key-value head; unreachable keys and values are 0."""
    full, key, value = logits_shape(call.query, call.key), call.key, call.value
    mask = as_booleans(call.mask, full)
    if mask is not None:
        key, value = without_unreachable(mask, key, value)
    heads = key.shape[-2]
    query = group_heads(heads_first(call.query), heads)
    operands = (broadcast_grouped(mask, full, heads), broadcast_grouped(call.bias, full, heads))
    return query, heads_first(key), heads_first(value), *operands


def _heads_last(y: Float[Array, "B K G T d_v"], call: AttentionCall) -> Float[Array, "*batch T N d_v"]:
    return heads_last(y, call.query.shape[:-1])
