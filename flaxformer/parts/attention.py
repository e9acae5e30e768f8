"""Multi-head attention: each token reads others by the match of its query with their keys."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.component import Aux, Context, overrides, with_aux
from flaxformer.nn.attention import (
    apply_weights,
    dot_product_attention,
    dot_product_logits,
    masked_softmax,
    without_unreachable,
)
from flaxformer.nn.cached_attention import cached_attention
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Mask, Window
from flaxformer.params import Parameters, param, subtree
from flaxformer.parts.cache import KeysValues, LayerCache, Memory, PackedKV, pack
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.norms import Norm
from flaxformer.struct import leaf, part, static


class Attention(TokenMixer):
    """Multi-head attention, Y = Concat_h(softmax(Q_h K_hᵀ · scale) V_h) W_O.

    The logit scale is width ** −scale_exponent: exponent 0 is unscaled, ½ is 1/√d, 1 is 1/d, and `scale_width` says
    whether d is the width of a head (as in Vaswani et al.) or of the model.

    value_form: "factored", heads of width d_value, concatenated and mapped by W_O; or "full",
    Y = Σ_h A_h X V_h with V_h of D × D ("An Introduction to Transformers", the multi-head self-attention layer).

    frozen_pattern: attention by fixed random weights over that many places at most, which no input changes.

    Sources: Vaswani et al. 2017, section 3.2; "Transformers like a physicist", equation 1; "An Introduction to
    Transformers", the multi-head self-attention layer.
    """

    class Weights(Parameters):
        """Three maps into heads, and one out of them; keys and values come from a source of width d_source."""

        query: Float[Array, "d_model heads d_head"] | None = param(fan_in="d_model", when="has_query")
        key: Float[Array, "d_source key_value_heads d_head"] | None = param(fan_in="d_source", when="has_key")
        value: Float[Array, "d_source key_value_heads d_value"] = param(fan_in="d_source", init="branch")
        out: Float[Array, "heads d_value d_model"] | None = param(fan_in="heads d_value", init="branch", when="has_out")
        query_bias: Float[Array, "heads d_head"] | None = param(init="zeros", decay=False, when="has_query_bias")
        key_bias: Float[Array, "key_value_heads d_head"] | None = param(init="zeros", decay=False, when="has_key_bias")
        value_bias: Float[Array, "key_value_heads d_value"] | None = param(init="zeros", decay=False, when="bias")
        out_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="out_bias")
        query_norm: Any = subtree(component="query_key_norm", when="has_query", sizes={"d_norm": "d_head"})
        key_norm: Any = subtree(component="query_key_norm", when="has_key", sizes={"d_norm": "d_head"})
        pattern: Float[Array, "heads pattern pattern"] | None = param(
            std=1.0, decay=False, trained=False, when="frozen_pattern"
        )

    heads: int = static(4, at_least=1)
    key_value_heads: int | None = static(None, at_least=1)
    d_head: int | None = static(None, at_least=1)
    d_value: int | None = static(None, at_least=1)
    window: int | None = leaf(None, at_least=1)
    scale_exponent: float = leaf(0.5)
    scale_width: str = static("head", choices=("head", "model"))
    logit_cap: float | None = leaf(None, above=0)
    query_key_norm: Norm | None = part(None)
    share_query_key: bool = static(False)
    value_form: str = static("factored", choices=("factored", "full"))
    frozen_pattern: int | None = static(None, at_least=1)
    bias: bool = static(True)
    out_bias: bool = static(True)

    has_out = property(lambda self: self.value_form == "factored")
    has_query = property(lambda self: self.frozen_pattern is None)
    has_key = property(lambda self: self.has_query and not self.share_query_key)
    has_query_bias = property(lambda self: self.has_query and self.bias)
    has_key_bias = property(lambda self: self.has_key and self.bias)
    max_length = property(lambda self: self.frozen_pattern)

    def problems(self) -> Iterator[str]:
        if self.heads % (self.key_value_heads or self.heads):
            yield f"key_value_heads is {self.key_value_heads}; expected a divisor of heads {self.heads}"
        if self.share_query_key and self.key_value_heads not in (None, self.heads):
            found = self.key_value_heads
            yield f"share_query_key is True with key_value_heads {found}; expected {self.heads}, as heads"
        if self.query_key_norm is not None and not self.query_key_norm.is_causal:
            yield 'query_key_norm.over is "sequence"; expected "token"'
        if self.query_key_norm is not None and self.query_key_norm.mixes_batch:
            kind = type(self.query_key_norm).__name__
            yield f"query_key_norm is {kind}, whose statistics are of the whole batch; expected a norm of each token"

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        d_head = self.d_head or model["d_model"] // self.heads
        return {
            "heads": self.heads,
            "key_value_heads": self.key_value_heads or self.heads,
            "d_head": d_head,
            "d_value": model["d_model"] if self.value_form == "full" else self.d_value or d_head,
            "pattern": self.frozen_pattern or 0,
        }

    # --- the parts of the computation, which a subclass may override ---------------------------------------

    def logits(
        self,
        weights: Any,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        """cap(Q Kᵀ · scale) + bias of every pair, masked or not."""
        return dot_product_logits(query, key, mask=mask, bias=bias, scale=scale, logit_cap=self.logit_cap)

    def normalize(
        self, weights: Any, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*#batch #N T S"]
    ) -> Float[Array, "*batch N T S"]:
        """The attention weights of logits, 0 where the mask is False; the softmax over the keys allowed."""
        return masked_softmax(logits, mask)

    def combine(
        self,
        weights: Any,
        attention: Float[Array, "*batch N T S"],
        value: Float[Array, "*batch S K d_v"],
        mask: Mask | None,
    ) -> Float[Array, "*batch T N d_v"]:
        """y_t = Σ_s A[t, s] v_s of every head."""
        return apply_weights(attention, value, mask=mask)

    @property
    def is_plain(self) -> bool:
        """True if logits, weights and products are this class's own, so that a fused kernel may compute them."""
        return all(getattr(type(self), name) is getattr(Attention, name) for name in ("logits", "normalize", "combine"))

    # --- the whole -----------------------------------------------------------------------------------------

    def apply(
        self, weights: Any, x: Float[Array, "*batch T D"], context: Context
    ) -> tuple[Float[Array, "*batch T D"], Aux]:
        source = x if context.source is None else context.source
        new, before = with_aux(self.keys_and_values(weights, source, context))
        y, aux = self.read(weights, x, new, context)
        return y, before.merge(aux)

    def keys_and_values(self, weights: Any, source: Float[Array, "*batch S D"], context: Context) -> Any:
        """K and V of the tokens to be read, or those and an `Aux`; self-attention has positions in K."""
        value = linear(source, weights.value, weights.value_bias)
        if weights.query is None:
            return KeysValues(key=None, value=value)
        shared = weights.key is None
        maps = (
            (weights.query, weights.query_bias, weights.query_norm)
            if shared
            else (weights.key, weights.key_bias, weights.key_norm)
        )
        return KeysValues(key=self._into_heads(source, *maps, context, context.query_positions), value=value)

    def read(
        self, weights: Any, x: Float[Array, "*batch T D"], read: KeysValues | PackedKV, context: Context
    ) -> tuple[Float[Array, "*batch T D"], Aux]:
        """The update, from the keys and values that are read, and what `Context.return_intermediates` asks for."""
        aux, mask, keep = Aux(), self._mask(context), context.return_intermediates
        is_plain = self.is_plain and weights.query is not None and not keep and not _reads_query(context)
        is_cached = isinstance(read, PackedKV) and x.shape[-2] == 1 and is_plain
        if isinstance(read, PackedKV) and not is_cached:
            read = read.unpack(x.shape[:-2])
        if weights.query is None:
            query = None
        else:
            maps = (weights.query, weights.query_bias, weights.query_norm)
            query = self._into_heads(x, *maps, context, context.query_positions)
        if is_plain:
            product = cached_attention if is_cached else dot_product_attention
            numbers = {
                "mask": mask,
                "bias": context.bias,
                "scale": self.scale(x.shape[-1]),
                "logit_cap": self.logit_cap,
            }
            mixed = product(query, read.key, read.value, **numbers)  # type: ignore[arg-type]
        else:
            mixed, aux = self._unfused(weights, query, read, mask, context, x)  # type: ignore[arg-type]
        if weights.out is not None:
            return linear(mixed, weights.out, weights.out_bias, contract=2), aux
        y = mixed.sum(-2)
        return (y if weights.out_bias is None else (y + _as_row(weights.out_bias, y)).astype(y.dtype)), aux

    def _unfused(
        self, weights: Any, query: Array | None, read: KeysValues, mask: Mask | None, context: Context, x: Array
    ) -> tuple[Float[Array, "*batch T N d_v"], Aux]:
        """The same by whole logits and weights."""
        full, bias = (*x.shape[:-2], self.heads, x.shape[-2], read.value.shape[-3]), context.bias
        allowed = _broadcast(jnp.ones((), bool) if mask is None else mask.matrix(*full[-2:]), full)
        if mask is not None:  # padding may be NaN: no override is to see it
            read = jax.tree.map(lambda one: without_unreachable(allowed, one)[0], read)
        if query is None:
            logits = _frozen_logits(weights.pattern, context)
        else:
            if _reads_query(context):
                seen = _per_query_head(read.key, query.shape[-2])  # type: ignore[arg-type]
                own = (context.scheme_weights, query, seen, context.query_positions, context.key_positions)
                added = context.scheme.query_bias(*own, allowed)
                bias = added if bias is None else bias + added
            logits = self.logits(weights, query, read.key, mask, bias, self.scale(x.shape[-1]))  # type: ignore[arg-type]
        logits = _broadcast(logits, full)
        attention = self.normalize(weights, logits, allowed)
        mixed = self.combine(weights, attention, read.value, mask)
        if not context.return_intermediates:
            return mixed, Aux()
        seen_by = None if mask is None else mask.matrix(*full[-2:])
        found = {"logits": logits, "allowed": seen_by, "weights": attention}
        return mixed, Aux(intermediates={name: one for name, one in found.items() if one is not None})

    def scale(self, d_model: int) -> Float[Array, ""]:
        """width ** −exponent, written so that powers of two are exact."""
        width = d_model if self.scale_width == "model" else self.d_head or d_model // self.heads
        return jnp.exp2(-self.scale_exponent * jnp.log2(width))

    def _mask(self, context: Context) -> Mask | None:
        """Return the context's mask, within the window."""
        if self.window is None or context.is_cross:
            return context.mask
        query_positions, key_positions = context.given_positions or (None, None)
        return Window(self.window, query_positions, key_positions) & context.mask

    def _into_heads(
        self, x: Array, weight: Array, bias: Array | None, norm: Any, context: Context, positions: Array
    ) -> Float[Array, "*batch T N d"]:
        """Queries or keys: mapped into heads, normalised, rotated."""
        y = linear(x, weight, bias)
        if norm is not None:
            y, _ = with_aux(self.query_key_norm.apply(norm, y, context.replace(valid=None)))  # type: ignore[union-attr]
        return y if context.scheme is None else context.scheme.rotate(y, positions)

    # --- decoding ------------------------------------------------------------------------------------------

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> LayerCache:
        heads, d_value = weights.value.shape[-2:]
        rows = 1
        for size in (*batch, heads):
            rows *= size
        key = None if weights.query is None else jnp.zeros((rows, capacity, weights.query.shape[-1]), dtype)
        return LayerCache(PackedKV(key=key, value=jnp.zeros((rows, capacity, d_value), dtype)))

    def step(
        self, weights: Any, x: Float[Array, "*batch T D"], state: LayerCache, context: Context
    ) -> tuple[Any, LayerCache]:
        new, before = with_aux(self.keys_and_values(weights, x, context))
        state = state.append(new, context.offset, context.valid)  # type: ignore[arg-type]
        y, aux = self.read(weights, x, state.own, context)
        return (y, before.merge(aux)), state

    def source_state(
        self, weights: Any, source: Float[Array, "*batch S D"], valid: Bool[Array, "*batch S"] | None, context: Context
    ) -> PackedKV | Memory:
        """Return the state of cross-attention for a source: keys and values, or with an `apply` of its own, all."""
        if overrides(type(self), "apply", "read"):
            return Memory(source)
        return pack(with_aux(self.keys_and_values(weights, source, context))[0], valid)


def _broadcast(x: Array, full: tuple[int, ...]) -> Array:
    """An array over all of [*batch, N, T, S]."""
    return jnp.broadcast_to(x.reshape((1,) * (len(full) - x.ndim) + x.shape), full)


def _reads_query(context: Context) -> bool:
    return context.scheme is not None and context.scheme.reads_query


def _per_query_head(key: Float[Array, "*batch S K H"], heads: int) -> Float[Array, "*batch S N H"]:
    return jnp.repeat(key, heads // key.shape[-2], axis=-2)


def _frozen_logits(pattern: Float[Array, "N pattern pattern"], context: Context) -> Float[Array, "*#batch N T S"]:
    query, key = context.query_positions, context.key_positions
    logits = pattern[:, query[..., :, None], key[..., None, :]]
    return jax.lax.stop_gradient(jnp.moveaxis(logits, 0, -3))


def _as_row(bias: Array, x: Array) -> Array:
    return bias.reshape((1,) * (x.ndim - 1) + (-1,))
