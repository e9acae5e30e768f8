"""Flax NNX modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2), rngs=nnx.Rngs(0))
>>> logits = model(tokens)                       # apply(model.params, model.config, tokens), to the bit

Weights are `nnx.Param`, with the names of the pure tree ("blocks/0/attention/query"); running statistics are
`nnx.BatchStat`, and weights that gradients do not train are `Frozen`. No weight occurs twice (a tied head uses the
embedding's), so that the modules work in graph mode and in tree mode. In tree mode, `nnx.grad` differentiates its whole
argument: split off all variables other than `nnx.Param`, and merge them inside the loss.
"""

from collections.abc import Mapping
from typing import ClassVar, Self, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flaxformer.components.cache import KeysValues
from flaxformer.components.component import replace_weights
from flaxformer.config import ModelConfig
from flaxformer.interop import flax_modules
from flaxformer.interop.nnx_variables import Frozen, Holder, Randomness, is_variable, to_variables, wrap_in_variables
from flaxformer.model import Transformer, init, run
from flaxformer.model.layout import Layout
from flaxformer.nn.masks import Causal, Mask

__all__ = ["Decoder", "Encoder", "EncoderDecoder", "Frozen", "Model", "MultiHeadAttention", "to_variables"]


class Settings(TypedDict, total=False):
    """Arguments of `Model` beside the config and the weights."""

    rngs: nnx.Rngs | None
    deterministic: bool | None
    layout: Layout
    keep_rngs: bool


class Model(Holder):
    """Model of any config; `Encoder`, `Decoder` and `EncoderDecoder` accept only configs of their family.

    Args:
      config: the architecture, whose numbers are Python numbers and static.
      rngs: `rngs.params` draws the weights, as `init(rngs.params(), config)`; `rngs.dropout` is forked for dropout.
      deterministic: default of the calls: True evaluates, False trains.
      layout: "unrolled" layers, or "scanned": one tree with a leading axis.
      keep_rngs: whether to keep the fork; otherwise each call in training needs `rngs`.
      params: weights, in either layout, to use in place of drawn ones.

    Raises:
      UserError: the config is not of the class's family.
    """

    family: ClassVar[str | None] = None

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs | None = None,
        deterministic: bool | None = None,
        layout: Layout = "unrolled",
        keep_rngs: bool = True,
        params: Transformer | None = None,
    ) -> None:
        flax_modules.check_family(config, self.family, type(self).__name__)
        if params is None:
            if rngs is None:
                raise ValueError("rngs and params are None; expected rngs to draw weights from, or params")
            params = init(rngs.params(), config, layout)
        self._set_variables(to_variables(params, config), config)
        needs_rngs = flax_modules.has_dropout(config) or (flax_modules.may_draw(config) and hasattr(rngs, "dropout"))
        self._set_rngs(rngs, keep_rngs and needs_rngs)
        self.deterministic = deterministic

    @classmethod
    def from_params(cls, config: ModelConfig, params: Transformer, **settings: Unpack[Settings]) -> Self:
        """Return the module with these weights."""
        return cls(config, params=params, **settings)

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
        mask: Mask | Array | None = None,
        sow_losses: bool = False,
        **given: Array | None,
    ) -> Float[Array, "..."]:
        """Return the model's output, as `flaxformer.model.apply`.

        Args:
          inputs: tokens [*batch, T], vectors or images, according to the config.
          deterministic: False applies dropout, and a BatchNorm normalises by the batch and updates its statistics in
            place. Required, here or in the constructor, for models whose training is known to differ from evaluation.
          rngs: random numbers of dropout: Rngs (its `dropout`), a stream, or a key.
          mask: mask of self-attention: a `Mask`, or an array [*batch, heads, T, S], nonzero at allowed pairs.
          sow_losses: sow the losses of components (`Aux.losses`), which training adds to the head's, as "losses".
          given: padding, positions, a source and so on; see `flaxformer.model.ForwardInputs`.
        """
        params, key = self.params, None
        is_read = flax_modules.reads_deterministic(self.config, self.deterministic, deterministic)
        if is_read and not self._is_deterministic(deterministic):
            # If no number is drawn, any key selects the behaviour in training.
            key = self._key(rngs) if flax_modules.may_draw(self.config) else jax.random.key(0)
        outcome = run(params, self.config, inputs, flax_modules.as_given(mask, given), dropout_key=key)
        after = replace_weights(params, outcome.aux.weights)
        jax.tree.map(_update, self._variables, params, after, is_leaf=is_variable)
        if sow_losses:
            self.sow(nnx.Intermediate, "losses", outcome.aux.losses)
        return outcome.output


def _update(variable: nnx.Variable, old: Array, new: Array) -> None:
    if new is not old:
        variable[...] = new


class Encoder(Model):
    """Model with bidirectional attention (mask_pattern "bidirectional"), such as a classifier."""

    family = "encoder"


class Decoder(Model):
    """Model with causal attention (mask_pattern "causal" or "prefix"), such as a language model."""

    family = "decoder"


class EncoderDecoder(Model):
    """Decoder with cross-attention to an encoder: `model(tokens, source=source)`."""

    family = "encoder-decoder"


class MultiHeadAttention(Holder):
    """`nnx.MultiHeadAttention` with this package's attention: `layer(inputs_q, inputs_k, inputs_v, mask=mask)`.

    Weights are those of `flaxformer.config.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query without
    any allowed key returns zeros, while Flax averages all values; dropout is drawn per head and sequence.

    Args:
      num_heads, in_features, qkv_features, out_features, num_kv_heads, in_kv_features: those of Flax; widths are of the
        queries' inputs, of all heads together, of the output, and of the keys' and values' inputs.
      dropout_rate: dropout of the attention weights.
      deterministic: default of the calls; required, here or in the call, if there is a dropout_rate.
      use_bias: whether the four linear maps have biases.
      decode: whether calls extend the cache that `init_cache` creates.
      normalize_qk: layer norm with a gain on queries and keys.
      options: fields of `Attention` without counterpart in Flax (`flaxformer.interop.flax_modules.OPTIONS`).
      rngs: `rngs.params` draws the weights, `rngs.dropout` is forked for dropout if `keep_rngs`.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        use_bias: bool = True,
        decode: bool = False,
        normalize_qk: bool = False,
        options: Mapping[str, object] | None = None,
        rngs: nnx.Rngs,
        keep_rngs: bool = True,
    ) -> None:
        config = flax_modules.attention_config(
            num_heads, in_features, qkv_features, num_kv_heads, in_kv_features, use_bias, normalize_qk, options or {}
        )
        names = flax_modules.attention_collections(config, out_features)
        variables = wrap_in_variables(names, flax_modules.attention_init(rngs.params(), config, out_features))
        self._set_variables(variables, config)
        self._set_rngs(rngs, keep_rngs and dropout_rate > 0)
        self.dropout_rate, self.deterministic, self.decode = dropout_rate, deterministic, decode
        self.cached_key: nnx.Cache[Array | None] | None = nnx.data(None)
        self.cached_value: nnx.Cache[Array] | None = nnx.data(None)
        self.cache_index: nnx.Cache[Array] | None = nnx.data(None)

    def init_cache(self, input_shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> None:
        """Create an empty cache for inputs [*batch, capacity, in_features]."""
        *batch, capacity, _ = input_shape
        cache = flax_modules.empty_cache(self.config, tuple(batch), capacity, dtype)
        self.cached_key = nnx.Cache[Array | None](cache.key)
        self.cached_value = nnx.Cache(cache.value)
        self.cache_index = nnx.Cache(jnp.int32(0))

    def __call__(
        self,
        inputs_q: Float[Array, "*batch T D"],
        inputs_k: Float[Array, "*batch S D"] | None = None,
        inputs_v: Float[Array, "*batch S D"] | None = None,
        *,
        mask: Mask | Array | None = None,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
    ) -> Float[Array, "*batch T D_out"]:
        """Return the attention of inputs_q to inputs_k (by default inputs_q) and inputs_v (by default inputs_k).

        Args:
          inputs_q, inputs_k, inputs_v: inputs of queries, keys and values.
          mask: a `Mask`, or an array [*batch, heads, T, S], nonzero at allowed pairs.
          deterministic: False applies dropout to attention weights.
          rngs: random numbers of dropout: Rngs (its `dropout`), a stream, or a key.
          sow_weights: sow the attention weights as the intermediate "attention_weights".
          decode: append the inputs, any number of tokens, to the cache; S is then its capacity.
          is_causal: let query t attend to keys s ≤ t only.

        Raises:
          ValueError: inputs of wrong width, or decoding without a cache or beyond its capacity.
        """
        params = self.params
        read, allowed = (
            flax_modules.project(params, self.config, inputs_q, inputs_k, inputs_v),
            flax_modules.as_mask(mask),
        )
        if self.decode if decode is None else decode:
            read, allowed = self._extend(read, allowed)
        elif is_causal:
            allowed = Causal() & allowed
        drop = self.dropout_rate > 0 and not self._is_deterministic(deterministic)
        y, weights = flax_modules.attend(
            params,
            self.config,
            inputs_q,
            read,
            allowed,
            dropout_rate=self.dropout_rate,
            dropout_key=self._key(rngs) if drop else None,
            return_weights=sow_weights,
        )
        if sow_weights:
            self.sow(nnx.Intermediate, "attention_weights", weights)
        return y

    def _extend(self, new: KeysValues, mask: Mask | None) -> tuple[KeysValues, Mask]:
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise ValueError("decode is True and there is no cache; expected init_cache to be called first")
        cached = KeysValues(self.cached_key[...], self.cached_value[...])
        read, used, mask = flax_modules.extend(cached, self.cache_index[...], new, mask)
        self.cached_key[...], self.cached_value[...], self.cache_index[...] = read.key, read.value, used
        return read, mask
