"""Flax NNX modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2), rngs=nnx.Rngs(0))
>>> logits = model(tokens)                       # apply(model.params, model.config, tokens), to the bit

Weights are `nnx.Param`, with the names of the pure tree ("blocks/0/attention/query"); running statistics are
`nnx.BatchStat`, and weights that gradients do not train are `Frozen`. No weight occurs twice (a tied head uses the
embedding's), so that the modules work in graph mode and in tree mode. In tree mode, `nnx.grad` differentiates its whole
argument: split off all variables other than `nnx.Param`, and merge them inside the loss.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import replace_weights
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.interop import flax_modules
from flaxformer.interop.flax_modules import HeadCache, TrainingTraits
from flaxformer.model import Transformer, init, run
from flaxformer.model.layout import Layout
from flaxformer.nn.masks import Causal, Mask

Randomness = nnx.Rngs | nnx.RngStream | Array
"""Random numbers of dropout: Rngs (its `dropout`), a stream, or a key."""


class Frozen(nnx.Variable):
    """Variable of a weight that training does not change."""


KINDS: dict[str, type[nnx.Variable]] = {"params": nnx.Param, "batch_stats": nnx.BatchStat, "frozen": Frozen}
"""Class of the variables of each collection."""


def is_variable(node: object) -> bool:
    """True if a node is a variable, which JAX sees as a tree."""
    return isinstance(node, nnx.Variable)


class Holder(nnx.Module):
    """Base of modules whose attributes are the fields of a tree of weights."""

    config: ModelConfig
    deterministic: bool | None

    def _set_up(
        self,
        config: ModelConfig,
        names: PyTree[str],
        params: Parameters,
        deterministic: bool | None,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Make the fields of the tree attributes, each weight in a variable, and fork the stream of dropout."""
        self.config, self.deterministic, self.parameters_class = nnx.static(config), deterministic, type(params)
        variables = jax.tree.map(lambda name, weight: KINDS[name](weight), names, params)
        for field in dataclasses.fields(variables):
            setattr(self, field.name, nnx.data(getattr(variables, field.name)))
        self.rngs = nnx.data(None if rngs is None else rngs.dropout.fork())

    @property
    def _variables(self) -> PyTree[nnx.Variable]:
        names = [field.name for field in dataclasses.fields(self.parameters_class)]
        return self.parameters_class(**{name: getattr(self, name) for name in names})

    @property
    def params(self) -> PyTree[Array]:
        """The weights as the pure tree for `flaxformer.model.apply`."""
        return jax.tree.map(lambda variable: variable[...], self._variables, is_leaf=is_variable)

    def _is_deterministic(self, deterministic: bool | None) -> bool:
        message = f"deterministic is None; {type(self).__name__} expects True or False, in the call or constructor"
        return nnx.module.first_from(deterministic, self.deterministic, error_msg=message)

    def _key(self, rngs: Randomness | None) -> Array:
        message = "deterministic is False and rngs is None; expected rngs to draw dropout from"
        stream = nnx.module.first_from(rngs, self.rngs, error_msg=message)
        stream = stream.dropout if isinstance(stream, nnx.Rngs) else stream
        return stream() if isinstance(stream, nnx.RngStream) else stream

    def set_view(self, deterministic: bool | None = None) -> None:
        """Set the attributes that `nnx.view` may change.

        Args:
          deterministic: True evaluates, False trains.
        """
        if deterministic is not None:
            self.deterministic = deterministic


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
        training = TrainingTraits.of(config)
        draws = keep_rngs and (training.has_dropout or (training.may_draw and hasattr(rngs, "dropout")))
        names = flax_modules.collections(params, config)
        self._set_up(config, names, params, deterministic, rngs if draws else None)

    @classmethod
    def from_params(cls, config: ModelConfig, params: Transformer, **settings: Any) -> Self:
        """Return the module with these weights; the settings are other arguments of the class."""
        return cls(config, params=params, **settings)

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
        mask: Mask | Array | None = None,
        sow_losses: bool = False,
        **arguments: Array | None,
    ) -> Float[Array, "..."]:
        """Return the model's output, as `flaxformer.model.apply`.

        Args:
          inputs: tokens [*batch, T], vectors or images, according to the config.
          deterministic: False applies dropout, and a BatchNorm normalises by the batch and updates its statistics in
            place. Required, here or in the constructor, for models whose training is known to differ from evaluation.
          rngs: random numbers of dropout.
          mask: mask of self-attention: a `Mask`, or an array [*batch, heads, T, S], nonzero at allowed pairs.
          sow_losses: sow the losses of components (`Aux.losses`), which training adds to the head's, as "losses".
          arguments: padding, positions, a source and so on; see `flaxformer.model.ForwardInputs`.
        """
        params, training, key = self.params, TrainingTraits.of(self.config), None
        if training.reads(self.deterministic, deterministic) and not self._is_deterministic(deterministic):
            # If no number is drawn, any key selects the behaviour in training.
            key = self._key(rngs) if training.may_draw else jax.random.key(0)
        outcome = run(params, self.config, inputs, flax_modules.as_inputs(mask, arguments), dropout_key=key)
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

    Weights are those of `flaxformer.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query without
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
        sizes = (num_heads, in_features, qkv_features, num_kv_heads, in_kv_features)
        config = flax_modules.attention_config(*sizes, use_bias, normalize_qk, options)
        names, draw = flax_modules.attention_weights(config, out_features)
        draws = keep_rngs and dropout_rate > 0
        self._set_up(config, names, draw(rngs.params()), deterministic, rngs if draws else None)
        self.dropout_rate, self.decode = dropout_rate, decode
        for name in HeadCache._fields:
            setattr(self, name, nnx.data(None))

    def init_cache(self, input_shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> None:
        """Create an empty cache for inputs [*batch, capacity, in_features]."""
        for name, value in HeadCache.empty(self.config, input_shape[:-1], dtype)._asdict().items():
            setattr(self, name, nnx.Cache(value))

    def _cache(self) -> HeadCache:
        variables = [getattr(self, name) for name in HeadCache._fields]
        if None in variables:
            raise ValueError("decode is True and there is no cache; expected init_cache to be called first")
        return HeadCache(*(variable[...] for variable in variables))

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
          rngs: random numbers of dropout.
          sow_weights: sow the attention weights as the intermediate "attention_weights".
          decode: append the inputs, any number of tokens, to the cache; S is then its capacity.
          is_causal: let query t attend to keys s ≤ t only.

        Raises:
          ValueError: inputs of wrong width, or decoding without a cache or beyond its capacity.
        """
        cache = self._cache() if (self.decode if decode is None else decode) else None
        y, weights, cache = flax_modules.attend(
            self.params,
            self.config,
            (inputs_q, inputs_k, inputs_v),
            Causal() & flax_modules.as_mask(mask) if is_causal and cache is None else mask,
            cache=cache,
            dropout_rate=self.dropout_rate,
            dropout_key=self._key(rngs)
            if self.dropout_rate > 0 and not self._is_deterministic(deterministic)
            else None,
            return_weights=sow_weights,
        )
        for name, value in cache._asdict().items() if cache is not None else ():
            getattr(self, name)[...] = value
        if sow_weights:
            self.sow(nnx.Intermediate, "attention_weights", weights)
        return y
