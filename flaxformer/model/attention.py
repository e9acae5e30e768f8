"""Multi-head attention: its weights, and what it computes."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.norm import HeadNorm
from flaxformer.nn.attention import dot_product_attention, dot_product_logits, fixed_weights, mix
from flaxformer.nn.cached_attention import cached_attention
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Mask
from flaxformer.params import Parameters, param, subtree
from flaxformer.pytree import Node


class Attention(Parameters):
    """Three maps into heads, and one out of them."""

    query: Float[Array, "d_model heads d_head"] | None = param(fan_in="d_model", when="has_query")
    key: Float[Array, "d_model key_value_heads d_head"] | None = param(fan_in="d_model", when="has_key")
    value: Float[Array, "d_model key_value_heads d_value"] = param(fan_in="d_model", init="branch")
    out: Float[Array, "heads d_value d_model"] | None = param(fan_in="heads d_value", init="branch", when="has_out")
    query_bias: Float[Array, "heads d_head"] | None = param(init="zeros", decay=False, when="has_query_bias")
    key_bias: Float[Array, "key_value_heads d_head"] | None = param(init="zeros", decay=False, when="has_key_bias")
    value_bias: Float[Array, "key_value_heads d_value"] | None = param(
        init="zeros", decay=False, when="query_key_value_bias"
    )
    out_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="out_bias")
    query_norm: HeadNorm | None = subtree(when="has_query_norm")
    key_norm: HeadNorm | None = subtree(when="has_key_norm")
    pattern: Float[Array, "heads pattern pattern"] | None = param(
        init="pattern", decay=False, trained=False, when="frozen_pattern"
    )


class CrossAttention(Attention):
    """Attention whose keys and values come from a memory of another width."""

    key: Float[Array, "d_memory key_value_heads d_head"] | None = param(fan_in="d_memory", when="has_key")
    value: Float[Array, "d_memory key_value_heads d_value"] = param(fan_in="d_memory", init="branch")


class KeysValues(Node):
    """What queries read: keys (None under a frozen pattern) and values, [..., S, K, width]."""

    key: Float[Array, "*batch S K d_k"] | None
    value: Float[Array, "*batch S K d_v"]


class Rows(Node):
    """`KeysValues` of a cache, [rows, slots, width]: a row is one key-value head of one sequence, sequences first."""

    key: Float[Array, "rows slots d_k"] | None
    value: Float[Array, "rows slots d_v"]

    def unfolded(self, batch: tuple[int, ...]) -> KeysValues:
        """The same as [*batch, slots, K, width]."""
        key, value = (
            None if x is None else jnp.swapaxes(x.reshape(*batch, -1, *x.shape[-2:]), -3, -2)
            for x in (self.key, self.value)
        )
        return KeysValues(key=key, value=value)  # type: ignore[arg-type]


def as_rows(x: KeysValues, valid: Bool[Array, "*batch S"] | None) -> Rows:
    """The same in rows; 0 at padding, whatever it was: times a weight of 0, a NaN is still one."""

    def folded(x: Array) -> Array:
        real = x if valid is None else jnp.where(valid[..., None, None], x, 0)
        return jnp.swapaxes(real, -3, -2).reshape(-1, x.shape[-3], x.shape[-1])

    return Rows(key=None if x.key is None else folded(x.key), value=folded(x.value))


class Scores(Node):
    """What every query and every key are to each other; None where it was not asked for.

    logits: scaled, capped and biased, before the mask.
    allowed: whether the query may attend to the key; broadcasts to the others from the right, None allows all.
    weights: the softmax of the logits over the keys allowed.
    """

    logits: Float[Array, "*batch N T S"] | None = None
    allowed: Bool[Array, "*#batch #N T S"] | None = None
    weights: Float[Array, "*batch N T S"] | None = None


def keys_and_values(
    params: Attention,
    config: ModelConfig,
    memory: Float[Array, "*batch S D"],
    positions: Int[Array, "*#batch S"] | None = None,
) -> KeysValues:
    """K and V of the tokens to be read; positions turn the keys, in self-attention."""
    value = linear(memory, params.value, params.value_bias)
    if params.query is None:
        return KeysValues(key=None, value=value)
    shared = params.key is None
    weight, bias, norm = (
        (params.query, params.query_bias, params.query_norm)
        if shared
        else (params.key, params.key_bias, params.key_norm)
    )
    return KeysValues(key=_into_heads(memory, weight, bias, norm, config, positions), value=value)


def attention(
    params: Attention,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    read: KeysValues | Rows,
    mask: Mask | None,
    bias: Float[Array, "*batch N T S"] | None = None,
    positions: tuple[Int[Array, "*#batch T"], Int[Array, "*#batch S"]] | None = None,
    keep: bool = False,
) -> tuple[Float[Array, "*batch T D"], Scores]:
    """Y = Concat_h(softmax(Q_h K_hᵀ · scale) V_h) W_O, with Q from x; in Turner's form, Σ_h A_h X V_h.

    Args:
      read: keys and values, of x itself or of a memory, or of a cache.
      positions: of the queries and of the keys; given in self-attention.
      keep: hand back the scores too: A, and how it came about.

    Sources: Vaswani et al. 2017, section 3.2; "Transformers like a physicist", equation 1; "An Introduction to
    Transformers", the multi-head self-attention layer.
    """
    logits, scores = None, Scores()
    one = isinstance(read, Rows) and x.shape[-2] == 1 and params.query is not None and not keep
    if isinstance(read, Rows) and not one:
        read = read.unfolded(x.shape[:-2])
    if params.query is None:
        logits = _frozen_logits(params, positions)  # type: ignore[arg-type]
    else:
        query = _into_heads(
            x, params.query, params.query_bias, params.query_norm, config, None if positions is None else positions[0]
        )
        numbers: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "scale": logit_scale(config),
            "logit_cap": config.logit_cap,
        }
        if keep:
            logits = dot_product_logits(query, read.key, **numbers)  # type: ignore[arg-type]
    if logits is None:
        product = cached_attention if one else dot_product_attention
        mixed = product(query, read.key, read.value, **numbers)  # type: ignore[arg-type]
    else:
        weights = fixed_weights(logits, mask, x.shape[:-2])
        mixed = mix(weights, read.value, mask=mask)
        if keep:
            allowed = None if mask is None else mask.matrix(*weights.shape[-2:])
            scores = Scores(jnp.broadcast_to(logits, weights.shape), allowed, weights)
    if params.out is not None:
        return linear(mixed, params.out, params.out_bias, contract=2), scores
    y = mixed.sum(-2)
    return (y if params.out_bias is None else (y + _as_row(params.out_bias, y)).astype(y.dtype)), scores


def logit_scale(config: ModelConfig) -> Float[Array, ""]:
    """width ** −exponent, written so that powers of two are exact."""
    width = {"head": config.sizes["d_head"], "model": config.d_model}[config.logit_scale_width]
    return jnp.exp2(-config.logit_scale_exponent * jnp.log2(width))


def _into_heads(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    norm: HeadNorm | None,
    config: ModelConfig,
    positions: Array | None,
) -> Float[Array, "*batch T N d"]:
    """Queries or keys: mapped into heads, normalised, turned."""
    y = linear(x, weight, bias)  # type: ignore[arg-type]
    if norm is not None:
        y = config.query_key_norm.apply(y, norm.gain, norm.bias)  # type: ignore[union-attr]
    return y if positions is None else config.positions.turn(y, positions)


def _frozen_logits(params: Attention, positions: tuple[Array, Array]) -> Float[Array, "*#batch N T S"]:
    query, key = positions
    logits = params.pattern[:, query[..., :, None], key[..., None, :]]  # type: ignore[index]
    return jax.lax.stop_gradient(jnp.moveaxis(logits, 0, -3))


def _as_row(bias: Array, x: Array) -> Array:
    return bias.reshape((1,) * (x.ndim - 1) + (-1,))
