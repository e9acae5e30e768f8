"""Flax NNX modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2), rngs=nnx.Rngs(0))
>>> logits = model(tokens)                       # apply(model.params, model.config, tokens), to the bit

Weights are `nnx.Param`, with the names of the pure tree ("blocks/0/attention/query"); running statistics are
`nnx.BatchStat`, and weights that gradients do not train are `Frozen`. No weight occurs twice (a tied head uses the
embedding's), so that the modules work in graph mode and in tree mode. In tree mode, `nnx.grad` differentiates its whole
argument: split off all variables other than `nnx.Param`, and merge them inside the loss.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.interop import flax_modules
from flaxformer.interop.flax_modules import HeadCache
from flaxformer.model import Transformer, init
from flaxformer.model.layout import Layout
from flaxformer.nn.dropout import dropout
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
    """Base of modules whose attributes are the fields of a tree of weights, each weight in a variable.

    rngs: the stream of dropout, forked; None draws from the argument `rngs` of each call.
    """

    def __init__(
        self,
        config: ModelConfig,
        names: PyTree[str],
        params: Parameters,
        deterministic: bool | None,
        rngs: nnx.Rngs | None,
    ) -> None:
        self.config, self.deterministic, self.parameters_class = nnx.static(config), deterministic, type(params)
        for name, value in vars(jax.tree.map(lambda name, weight: KINDS[name](weight), names, params)).items():
            setattr(self, name, nnx.data(value))
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and hasattr(rngs, "dropout") else None)

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
        kept = rngs if keep_rngs and flax_modules.may_draw(config) else None
        super().__init__(config, flax_modules.collections(params, config), params, deterministic, kept)

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
        params = self.params
        key = flax_modules.training_key(
            self.config,
            self.deterministic is not None or deterministic is not None,
            lambda: self._is_deterministic(deterministic),
            lambda: self._key(rngs),
        )
        output, after, losses = flax_modules.forward(params, self.config, inputs, mask, arguments, key)
        jax.tree.map(_update, self._variables, params, after, is_leaf=is_variable)
        if sow_losses:
            self.sow(nnx.Intermediate, "losses", losses)
        return output


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
    """`nnx.MultiHeadAttention` with this package's attention, with equal arguments where both have them.

    Weights are those of `flaxformer.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query without
    any allowed key returns zeros, while Flax averages all values; dropout is drawn per head and sequence.
    `options` are fields of `Attention` without counterpart in Flax (`flaxformer.interop.flax_modules.OPTIONS`).
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
        kept = rngs if keep_rngs and dropout_rate > 0 else None
        super().__init__(config, names, draw(rngs.params()), deterministic, kept)
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

        `mask` is a `Mask`, or Flax's array; `sow_weights` sows the intermediate "attention_weights"; `decode` appends
        any number of tokens to the cache, whose capacity is then S.

        Raises:
          ValueError: inputs of wrong width, or decoding without a cache or beyond its capacity.
        """
        cache = self._cache() if (self.decode if decode is None else decode) else None
        mask = Causal() & flax_modules.as_mask(mask) if is_causal and cache is None else mask
        is_dropping = self.dropout_rate > 0 and not self._is_deterministic(deterministic)
        drop = functools.partial(dropout, self._key(rngs), self.dropout_rate) if is_dropping else None
        inputs = (inputs_q, inputs_k, inputs_v)
        y, weights, cache = flax_modules.attend(self.params, self.config, inputs, mask, cache, drop, sow_weights)
        for name, value in cache._asdict().items() if cache is not None else ():
            getattr(self, name)[...] = value
        if sow_weights:
            self.sow(nnx.Intermediate, "attention_weights", weights)
        return y
