"""Multi-head attention as a token mixer."""

import math
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from flaxformer.components.branch import TokenMixer
from flaxformer.components.cache import KeysValues, LayerCache, Memory, PackedKV, pack
from flaxformer.components.component import Aux, ComponentResult, Context, OwnWeights, is_more_derived, with_aux
from flaxformer.components.norms import Norm
from flaxformer.components.positions import logit_bias
from flaxformer.core.params import Parameters, param, subtree
from flaxformer.core.struct import leaf, part, static
from flaxformer.nn.attention import map_queries, masked_softmax
from flaxformer.nn.dot_product import apply_weights, cached_attention, dot_product_attention, dot_product_logits
from flaxformer.nn.formulations import FormulationChoice, record
from flaxformer.nn.heads import broadcast_logits, without_unreachable
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Mask, Window
from flaxformer.nn.positions import frozen_logits


class Attention(TokenMixer):
    """Multi-head attention, Y = Concat_h(softmax(Q_h K_hᵀ · scale) V_h) W_O.

    heads, key_value_heads: numbers of query heads and of key-value heads; None for as many as query heads.
    d_head: width of a head's queries and keys; None for d_model / heads.
    d_value: width of a head's values; None for d_head.
    window: a token attends to tokens at a distance below this; None for no limit.
    scale_exponent: the scale is width^−scale_exponent: 0 for no scaling, ½ for 1/√width, 1 for 1/width.
    scale_width: this width is that of a "head" (Vaswani et al. 2017) or of the "model".
    logit_cap: bounds the scaled logits z smoothly, logit_cap · tanh(z / logit_cap); None for no bound.
    query_key_norm: norm of each head's queries and keys; None for no norm.
    share_query_key: use the query matrix for keys.
    value_form: "factored", heads of width d_value that are concatenated and multiplied by W_O; or "full",
        Y = Σ_h A_h X V_h with V_h of D × D ("An Introduction to Transformers", the multi-head self-attention layer).
    frozen_pattern: fixed random attention weights that do not depend on the input, over at most this many positions.
    bias, out_bias: add a bias to queries, keys and values; to the output.

    Sources: Vaswani et al. 2017, section 3.2; "Transformers like a physicist", equation 1; "An Introduction to
    Transformers", the multi-head self-attention layer.
    """

    class Weights(Parameters):
        """Matrices into the heads and out of them; keys and values have a source of width d_source."""

        query: Float[Array, "d_model heads d_head"] | None = param(fan_in="d_model", when="has_query")
        key: Float[Array, "d_source key_value_heads d_head"] | None = param(fan_in="d_source", when="has_key")
        value: Float[Array, "d_source key_value_heads d_value"] = param(fan_in="d_source", init="branch")
        out: Float[Array, "heads d_value d_model"] | None = param(fan_in="heads d_value", init="branch", when="has_out")
        query_bias: Float[Array, "heads d_head"] | None = param(init="zeros", decay=False, when="has_query_bias")
        key_bias: Float[Array, "key_value_heads d_head"] | None = param(init="zeros", decay=False, when="has_key_bias")
        value_bias: Float[Array, "key_value_heads d_value"] | None = param(init="zeros", decay=False, when="bias")
        out_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="out_bias")
        query_norm: Parameters | None = subtree(
            component="query_key_norm", when="has_query", sizes={"d_norm": "d_head"}
        )
        key_norm: Parameters | None = subtree(
            component="query_key_norm", when="has_key", sizes={"d_norm": "d_head", "heads": "key_value_heads"}
        )
        pattern: Float[Array, "heads pattern pattern"] | None = param(
            std=1.0, decay=False, trained=False, when="frozen_pattern"
        )

    heads: int = static(4, at_least=1)
    key_value_heads: int | None = static(None, at_least=1)
    d_head: int | None = static(None, at_least=1)
    d_value: int | None = static(None, at_least=1)
    window: int | None = static(None, at_least=1)
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
            count = f"key_value_heads {self.key_value_heads}"
            yield f"share_query_key is True with {count}; expected the number of heads, {self.heads}"
        if self.query_key_norm is not None and not self.query_key_norm.is_causal:
            yield 'query_key_norm.over is "sequence"; expected "token"'
        if self.query_key_norm is not None and self.query_key_norm.mixes_batch:
            kind = type(self.query_key_norm).__name__
            yield f"query_key_norm is {kind}, whose statistics are over the batch; expected a norm per token"

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        d_head = self.d_head or model["d_model"] // self.heads
        return {
            "heads": self.heads,
            "key_value_heads": self.key_value_heads or self.heads,
            "d_head": d_head,
            "d_value": model["d_model"] if self.value_form == "full" else self.d_value or d_head,
            "pattern": self.frozen_pattern or 0,
        }

    def logits(
        self,
        weights: OwnWeights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        """Return cap(Q Kᵀ · scale) + bias of all pairs, also the masked ones."""
        return dot_product_logits(query, key, mask=mask, bias=bias, scale=scale, logit_cap=self.logit_cap)

    def normalize(
        self, weights: OwnWeights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*#batch #N T S"]
    ) -> Float[Array, "*batch N T S"]:
        """Return the attention weights, 0 where the mask is False: softmax over the other keys."""
        return masked_softmax(logits, mask)

    def transform_weights(
        self, weights: OwnWeights, attention: Float[Array, "*batch N T S"], context: Context
    ) -> Float[Array, "*batch N T S"]:
        """Return the attention weights that mix the values, from those of `normalize`."""
        return attention

    def combine(
        self,
        weights: OwnWeights,
        attention: Float[Array, "*batch N T S"],
        value: Float[Array, "*batch S K d_v"],
        mask: Mask | None,
    ) -> Float[Array, "*batch T N d_v"]:
        """Return y_t = Σ_s A[t, s] v_s for every head."""
        return apply_weights(attention, value, mask=mask)

    def transform_heads(
        self,
        weights: OwnWeights,
        heads: Float[Array, "*batch T N d_v"],
        x: Float[Array, "*batch T D"],
        context: Context,
    ) -> Float[Array, "*batch T N d_v"]:
        """Return what W_O maps, from the mixed values of the heads and the input x of the attention."""
        return heads

    def cache_widths(self, weights: OwnWeights) -> tuple[int, int]:
        """Return the widths of a key and of a value of `keys_and_values`, which the cache of a decoding holds."""
        return 0 if weights.query is None else weights.query.shape[-1], weights.value.shape[-1]

    @property
    def is_plain(self) -> bool:
        """True if no subclass overrides a step between queries and heads, so that a fused kernel may compute them."""
        steps = ("logits", "normalize", "transform_weights", "combine")
        return all(getattr(type(self), name) is getattr(Attention, name) for name in steps)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> ComponentResult:
        source = x if context.source is None else context.source
        keys_values, key_aux = self._edited_keys_and_values(weights, source, context)
        y, aux = self.read(weights, x, keys_values, context)
        return y, key_aux.merge(aux)

    def keys_and_values(
        self, weights: OwnWeights, source: Float[Array, "*batch S D"], context: Context
    ) -> KeysValues | tuple[KeysValues, Aux]:
        """Return K, with positions in self-attention, and V of the source, or these and an `Aux`."""
        value = linear(source, weights.value, weights.value_bias)
        if weights.query is None:
            return KeysValues(key=None, value=value)
        maps = (weights.query, weights.query_bias, weights.query_norm)
        if weights.key is not None:  # not shared with the query
            maps = (weights.key, weights.key_bias, weights.key_norm)
        matrix, bias, norm = maps
        key = self._place(linear(source, matrix, bias), norm, context, is_key=True)
        return KeysValues(key=key, value=value)

    def _edited_keys_and_values(self, weights: Weights, source: Array, context: Context) -> tuple[KeysValues, Aux]:
        """Return `keys_and_values` after the edits of the call, and their `Aux`."""
        keys_values, aux = with_aux(self.keys_and_values(weights, source, context))
        context = context.of_source() if context.is_cross else context
        key = None if keys_values.key is None else context.edit("key", keys_values.key)
        return keys_values.replace(key=key, value=context.edit("value", keys_values.value)), aux

    def read(
        self, weights: Weights, x: Float[Array, "*batch T D"], read: KeysValues | PackedKV, context: Context
    ) -> tuple[Float[Array, "*batch T D"], Aux]:
        """Return the update of x from keys and values, and the intermediates if `context.return_intermediates`."""
        aux, query, why = Aux(), None, self._why_steps(context)
        scale: float | Array = self.scale(x.shape[-1])
        if weights.query is not None:
            # The scale may multiply the map of the queries, unless a norm, an edit or a step reads them unscaled.
            is_linear = self.query_key_norm is None and not context.is_edited("query") and isinstance(read, KeysValues)
            of = map_queries if why is None and is_linear else map_queries.equation
            query, scale = of(x, weights.query, weights.query_bias, scale)
            query = context.edit("query", self._place(query, weights.query_norm, context))
        if query is None or why is not None:
            record(
                FormulationChoice(
                    "attention", "steps", f"T {x.shape[-2]}, {self.heads} heads", (f"all kernels: {why}",)
                )
            )
            mixed, aux = self._mix_by_steps(weights, x, query, read, context)
        else:
            attend: Callable[..., Array] = cached_attention if isinstance(read, PackedKV) else dot_product_attention
            options = {"mask": self._mask(context), "bias": context.bias, "logit_cap": self.logit_cap}
            mixed = attend(query, read.key, read.value, scale=scale, **options)
        mixed = context.edit("heads", self.transform_heads(weights, mixed, x, context))
        if weights.out is not None:
            return linear(mixed, weights.out, weights.out_bias, contract=2), aux
        y = mixed.sum(-2)
        if weights.out_bias is not None:
            y = (y + weights.out_bias.reshape((1,) * (y.ndim - 1) + (-1,))).astype(y.dtype)
        return y, aux

    def _why_steps(self, context: Context) -> str | None:
        """Return why the attention weights must be computed step by step, not by a kernel; None if they need not."""
        if self.frozen_pattern is not None or not self.is_plain:
            return f"{type(self).__name__} has its own logits, normalize, weights or combine, or a frozen pattern"
        if context.scheme is not None and context.scheme.reads_query:
            return f"the bias of {type(context.scheme).__name__} depends on the query"
        if context.is_edited("logits", "weights"):
            return "the logits or weights are edited"
        return "the weights are asked for" if context.return_intermediates else None

    def _mix_by_steps(
        self, weights: Weights, x: Array, query: Array | None, read: KeysValues | PackedKV, context: Context
    ) -> tuple[Float[Array, "*batch T N d_v"], Aux]:
        """Return the mixed values by `logits`, `normalize` and `combine`, and the intermediates if asked for."""
        mask, read = self._mask(context), read.unpack(x.shape[:-2]) if isinstance(read, PackedKV) else read
        full = (*x.shape[:-2], self.heads, x.shape[-2], read.value.shape[-3])
        allowed = broadcast_logits(jnp.ones((), bool) if mask is None else mask.matrix(*full[-2:]), full)
        if mask is not None:  # overrides must not read padding, which may be NaN
            read = jax.tree.map(lambda leaf: without_unreachable(allowed, leaf)[0], read)
        if query is None or read.key is None:
            assert weights.pattern is not None, "without queries, there is a frozen pattern"
            logits = frozen_logits(weights.pattern, context.query_positions, context.key_positions)
        else:
            bias = logit_bias(context, query, read.key, allowed)
            logits = self.logits(weights, query, read.key, mask, bias, self.scale(x.shape[-1]))
        logits = context.edit("logits", broadcast_logits(logits, full))
        attention = self.transform_weights(weights, self.normalize(weights, logits, allowed), context)
        attention = context.edit("weights", attention)
        mixed = self.combine(weights, attention, read.value, mask)
        if not context.return_intermediates:
            return mixed, Aux()
        intermediates = {"logits": logits, "weights": attention}
        if mask is not None:
            intermediates["allowed"] = mask.matrix(*full[-2:])
        return mixed, Aux(intermediates=intermediates)

    def scale(self, d_model: int) -> Float[Array, ""]:
        """Return width^−scale_exponent, exactly if it is a power of two."""
        width = d_model if self.scale_width == "model" else self.d_head or d_model // self.heads
        return jnp.exp2(-self.scale_exponent * jnp.log2(width))

    def _mask(self, context: Context) -> Mask | None:
        """Return the mask of the context, restricted to the window."""
        if self.window is None or context.is_cross:
            return context.mask
        return Window(self.window, *(context.given_positions or (None, None))) & context.mask

    def _place(
        self, y: Array, norm: Parameters | None, context: Context, is_key: bool = False
    ) -> Float[Array, "*batch T N d"]:
        """Return queries or keys: normalised, and rotated by the position scheme."""
        if norm is not None and self.query_key_norm is not None:
            y, _ = with_aux(self.query_key_norm.apply(norm, y, context.replace(valid=None)))
        if context.scheme is None:
            return y
        rotate = context.scheme.rotate_key if is_key else context.scheme.rotate
        return rotate(y, context.query_positions)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> LayerCache:
        d_key, d_value = self.cache_widths(weights)
        rows = math.prod((*batch, weights.value.shape[-2]))
        key = None if weights.query is None else jnp.zeros((rows, capacity, d_key), dtype)
        return LayerCache(PackedKV(key=key, value=jnp.zeros((rows, capacity, d_value), dtype)))

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: LayerCache, context: Context
    ) -> tuple[ComponentResult, LayerCache]:
        assert context.offset is not None, "a decoding state has an offset"
        keys_values, key_aux = self._edited_keys_and_values(weights, x, context)
        state = state.append(keys_values, context.offset, context.valid)
        y, aux = self.read(weights, x, state.packed, context)
        return (y, key_aux.merge(aux)), state

    def source_state(
        self,
        weights: Weights,
        source: Float[Array, "*batch S D"],
        valid: Bool[Array, "*batch S"] | None,
        context: Context,
    ) -> PackedKV | Memory:
        """Return the decoding state of cross-attention: keys and values, or the source if `apply` is overridden."""
        if is_more_derived(type(self), "apply", "read"):
            return Memory(source)
        return pack(self._edited_keys_and_values(weights, source, context)[0], valid)
