"""Flax NNX modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2), rngs=nnx.Rngs(0))
>>> logits = model(tokens)                       # apply(model.params, model.config, tokens), to the bit

Weights are `nnx.Param` at the names that they have in the pure tree ("blocks/0/attention/query"); running statistics
are `nnx.BatchStat`, and weights that no gradient trains are `Frozen`. No weight is in two places (a tied head reads the
embedding's), so the modules work in graph mode and in tree mode alike. In tree mode `nnx.grad` differentiates all that
its argument holds: split off what is not `nnx.Param`, random streams and statistics, and merge inside the loss.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flaxformer.component import changed_weights
from flaxformer.config import ModelConfig
from flaxformer.interop import modules
from flaxformer.interop.nnx_variables import Frozen, Holder, Randomness, in_variables, is_variable, to_variables
from flaxformer.model import init, run
from flaxformer.model.layout import Layout
from flaxformer.nn.masks import Causal, Mask
from flaxformer.parts.cache import KeysValues

__all__ = ["Decoder", "Encoder", "EncoderDecoder", "Frozen", "Model", "MultiHeadAttention", "to_variables"]


class Model(Holder):
    """Any model that a config describes; `Encoder`, `Decoder` and `EncoderDecoder` take those of their family alone.

    Args:
      config: the architecture; its numbers are Python's, and static.
      rngs: `rngs.params` draws the weights, as `init(rngs.params(), config)`; `rngs.dropout` is forked for dropout.
      deterministic: whether calls evaluate (True) or train (False), where the call does not say.
      layout: "unrolled" layers, or "scanned": one tree with a leading axis.
      keep_rngs: whether to hold the fork; without it each call in training is given `rngs`.
      params: weights to hold, in either layout, in place of drawn ones.
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
        params: Any = None,
    ) -> None:
        modules.check_family(config, self.family, type(self).__name__)
        if params is None and rngs is None:
            raise ValueError("rngs and params are None; expected rngs to draw weights from, or params")
        params = init(rngs.params(), config, layout) if params is None else params  # type: ignore[union-attr]
        self._hold(to_variables(params, config), config)
        draws = modules.has_dropout(config) or (modules.may_draw(config) and hasattr(rngs, "dropout"))
        self._keep(rngs, keep_rngs and draws)
        self.deterministic = deterministic

    @classmethod
    def from_params(cls, config: ModelConfig, params: Any, **settings: Any) -> Self:
        """The module that holds these weights."""
        return cls(config, params=params, **settings)

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
        mask: Mask | Array | None = None,
        sow_losses: bool = False,
        **given: Any,
    ) -> Float[Array, "..."]:
        """Return the model's output: `flaxformer.model.apply`.

        Args:
          inputs: tokens [*batch, T], vectors or images, as the config says.
          deterministic: False trains: dropout, and a BatchNorm normalises by the batch and moves its statistics, in
            place. It must be given, here or when built, where training is known to differ from evaluation.
          rngs: what to draw dropout from: Rngs (its `dropout`), a stream, or a key.
          mask: of self-attention: a `Mask`, or an array that is not zero where to attend, [*batch, heads, T, S].
          sow_losses: keep the losses of components (`Aux.losses`), to be added to the head's, as "losses".
          given: padding, positions, a source and so on; see `flaxformer.model.Given`.
        """
        params, key = self.params, None
        is_read = modules.reads_deterministic(self.config, self.deterministic, deterministic)
        if is_read and not self._is_deterministic(deterministic):
            # Where no number is drawn, any key says that this is training.
            key = self._key(rngs) if modules.may_draw(self.config) else jax.random.key(0)
        outcome = run(params, self.config, inputs, modules.as_given(mask, given), dropout_key=key)
        after = changed_weights(params, outcome.aux.weights)
        jax.tree.map(_update, self._held, params, after, is_leaf=is_variable)
        if sow_losses:
            self.sow(nnx.Intermediate, "losses", outcome.aux.losses)
        return outcome.output


def _update(variable: nnx.Variable, old: Array, new: Array) -> None:
    if new is not old:
        variable[...] = new


class Encoder(Model):
    """A model whose tokens see all others (mask_pattern "bidirectional"), such as a classifier."""

    family = "encoder"


class Decoder(Model):
    """A model whose tokens see those before them (mask_pattern "causal" or "prefix"), such as a language model."""

    family = "decoder"


class EncoderDecoder(Model):
    """A decoder that reads an encoder: `model(tokens, source=source)`."""

    family = "encoder-decoder"


class MultiHeadAttention(Holder):
    """`nnx.MultiHeadAttention` with this package's attention: `layer(inputs_q, inputs_k, inputs_v, mask=mask)`.

    Weights are those of `flaxformer.config.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query that
    may attend to nothing gets zeros where Flax averages all values; dropout draws for each head and sequence.

    Args:
      num_heads, in_features, qkv_features, out_features, num_kv_heads, in_kv_features: as Flax has them; widths of the
        queries' inputs, of all heads together, of the output, and of the keys' and values' inputs.
      dropout_rate: of the attention weights.
      deterministic: whether calls evaluate, where the call does not say; one of the two must, with a dropout_rate.
      use_bias: of all four maps.
      decode: whether calls extend the cache that `init_cache` made.
      normalize_qk: layer norm with a gain on queries and keys.
      options: fields of `Attention` that Flax has no name for (`flaxformer.interop.modules.OPTIONS`).
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
        options: Mapping[str, Any] | None = None,
        rngs: nnx.Rngs,
        keep_rngs: bool = True,
    ) -> None:
        config = modules.attention_config(
            num_heads, in_features, qkv_features, num_kv_heads, in_kv_features, use_bias, normalize_qk, options or {}
        )
        names = modules.attention_collections(config, out_features)
        self._hold(in_variables(names, modules.attention_init(rngs.params(), config, out_features)), config)
        self._keep(rngs, keep_rngs and dropout_rate > 0)
        self.dropout_rate, self.deterministic, self.decode = dropout_rate, deterministic, decode
        self.cached_key: Any = nnx.data(None)
        self.cached_value: Any = nnx.data(None)
        self.cache_index: Any = nnx.data(None)

    def init_cache(self, input_shape: tuple[int, ...], dtype: Any = jnp.float32) -> None:
        """An empty cache for inputs [*batch, capacity, in_features]."""
        *batch, capacity, _ = input_shape
        cache = modules.empty_cache(self.config, tuple(batch), capacity, dtype)
        self.cached_key, self.cached_value = nnx.Cache(cache.key), nnx.Cache(cache.value)
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
        """Attention of inputs_q to inputs_k (left out: inputs_q) and inputs_v (left out: inputs_k).

        Args:
          mask: a `Mask`, or an array that is not zero where to attend, [*batch, heads, T, S].
          deterministic: False drops attention weights.
          rngs: what to draw dropout from: Rngs (its `dropout`), a stream, or a key.
          sow_weights: keep the weights as the intermediate "attention_weights".
          decode: the inputs, any number of tokens, follow those of the cache, which keeps them; S is its positions.
          is_causal: query t sees keys s ≤ t.
        """
        params = self.params
        read, allowed = modules.project(params, self.config, inputs_q, inputs_k, inputs_v), modules.as_mask(mask)
        if self.decode if decode is None else decode:
            read, allowed = self._extend(read, allowed)
        elif is_causal:
            allowed = Causal() & allowed
        drop = self.dropout_rate > 0 and not self._is_deterministic(deterministic)
        y, weights = modules.attend(
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
        if self.cache_index is None:
            raise ValueError("decode is True and there is no cache; expected init_cache to be called first")
        cached = KeysValues(self.cached_key[...], self.cached_value[...])
        read, used, mask = modules.extend(cached, self.cache_index[...], new, mask)
        self.cached_key[...], self.cached_value[...], self.cache_index[...] = read.key, read.value, used
        return read, mask
