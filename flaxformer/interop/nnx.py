"""Flax NNX modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2), rngs=nnx.Rngs(0))
>>> logits = model(tokens)                       # apply(model.params, model.config, tokens), to the bit

Weights are `nnx.Param` at the names that they have in the pure tree ("blocks/0/attention/query"); running statistics
are `nnx.BatchStat`, and weights that no gradient trains are `Frozen`. No weight is in two places (a tied head reads the
embedding's), so the modules work in graph mode and in tree mode alike. In tree mode `nnx.grad` differentiates all that
its argument holds: split off what is not `nnx.Param`, random streams and statistics, and merge inside the loss.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flaxformer.interop import modules
from flaxformer.interop.modules import AnyConfig
from flaxformer.model import init, run
from flaxformer.model.attention import Attention, KeysValues
from flaxformer.model.transformer import Layout
from flaxformer.nn.masks import Causal, Mask
from flaxformer.params import Parameters

Randomness = nnx.Rngs | nnx.RngStream | Array
ParametersT = TypeVar("ParametersT", bound=Parameters)


class Frozen(nnx.Variable):
    """A weight that stays as it was drawn or loaded."""


KINDS: dict[str, type[nnx.Variable]] = {"params": nnx.Param, "batch_stats": nnx.BatchStat, "frozen": Frozen}
"""The kind of variable that holds the weights of each collection."""


def to_variables(params: ParametersT, config: AnyConfig) -> ParametersT:
    """The same tree with each weight in a variable of its kind."""
    return jax.tree.map(lambda name, weight: KINDS[name](weight), modules.collections(params, config), params)


def _values(tree: Any) -> Any:
    return jax.tree.map(lambda variable: variable[...], tree, is_leaf=_is_variable)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


class _Holder(nnx.Module):
    """A module whose attributes are the fields of a tree of weights."""

    config: Any
    deterministic: bool | None

    def _hold(self, params: Parameters, config: AnyConfig) -> None:
        self.config = nnx.static(config)
        self.parameters_class = type(params)
        held = to_variables(params, config)
        for field in dataclasses.fields(held):
            setattr(self, field.name, nnx.data(getattr(held, field.name)))

    @property
    def _held(self) -> Any:
        names = [field.name for field in dataclasses.fields(self.parameters_class)]
        return self.parameters_class(**{name: getattr(self, name) for name in names})

    @property
    def params(self) -> Any:
        """The weights as the pure tree that `flaxformer.model.apply` takes."""
        return _values(self._held)

    def _keep(self, rngs: nnx.Rngs | None, wanted: bool) -> None:
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and wanted else None)

    def _is_deterministic(self, deterministic: bool | None) -> bool:
        return nnx.module.first_from(
            deterministic,
            self.deterministic,
            error_msg=f"deterministic is None; {type(self).__name__} expects True or False, here or when it is built",
        )

    def _key(self, rngs: Randomness | None) -> Array:
        found = nnx.module.first_from(
            rngs, self.rngs, error_msg="deterministic is False and rngs is None; expected rngs to draw dropout from"
        )
        if isinstance(found, nnx.Rngs):
            return found.dropout()
        return found() if isinstance(found, nnx.RngStream) else found

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `nnx.view` may change.

        Args:
          deterministic: True evaluates, False trains.
        """
        if deterministic is not None:
            self.deterministic = deterministic


class Model(_Holder):
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
        config: AnyConfig,
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
        self._hold(init(rngs.params(), config, layout) if params is None else params, config)  # type: ignore[union-attr]
        self._keep(rngs, keep_rngs and modules.drops(config))
        self.deterministic = deterministic

    @classmethod
    def from_params(cls, config: AnyConfig, params: Any, **settings: Any) -> Self:
        """The module that holds these weights."""
        return cls(config, params=params, **settings)

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
        mask: Mask | Array | None = None,
        **given: Any,
    ) -> Float[Array, "..."]:
        """What the model says: `flaxformer.model.apply`.

        Args:
          inputs: tokens [*batch, T], vectors or images, as the config says.
          deterministic: False trains: dropout, and a BatchNorm normalises by the batch and moves its statistics, in
            place. It must be given, here or when built, where training differs from evaluation.
          rngs: what to draw dropout from: Rngs (its `dropout`), a stream, or a key.
          mask: of self-attention: a `Mask`, or an array that is not zero where to attend, [*batch, heads, T, S].
          given: padding, positions, a source and so on; see `flaxformer.model.Given`.
        """
        drops, moves, key = modules.drops(self.config), modules.moves(self.config), None
        if (drops or moves) and not self._is_deterministic(deterministic):
            # Without dropout no number is drawn, and any key says that this is training.
            key = self._key(rngs) if drops else jax.random.key(0)
        outcome = run(self.params, self.config, inputs, modules.as_given(mask, given), dropout_key=key)
        if moves and key is not None:
            jax.tree.map(_move, self._held, outcome.params, is_leaf=_is_variable)
        return outcome.output


def _move(variable: nnx.Variable, value: Array) -> None:
    if isinstance(variable, nnx.BatchStat):
        variable[...] = value


class Encoder(Model):
    """A model whose tokens see all others (visibility "full"), such as a classifier."""

    family = "encoder"


class Decoder(Model):
    """A model whose tokens see those before them (visibility "causal" or "prefix"), such as a language model."""

    family = "decoder"


class EncoderDecoder(Model):
    """A decoder that reads an encoder: `model(tokens, source=source)`."""

    family = "encoder-decoder"


class MultiHeadAttention(_Holder):
    """`nnx.MultiHeadAttention` with this package's attention: `layer(inputs_q, inputs_k, inputs_v, mask=mask)`.

    Weights are those of `flaxformer.model.attention.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query
    that may attend to nothing gets zeros where Flax averages all values; dropout draws for each head and sequence.

    Args:
      num_heads, in_features, qkv_features, out_features, num_kv_heads, in_kv_features: as Flax has them; widths of the
        queries' inputs, of all heads together, of the output, and of the keys' and values' inputs.
      dropout_rate: of the attention weights.
      deterministic: whether calls evaluate, where the call does not say; one of the two must, with a dropout_rate.
      use_bias: of all four maps.
      decode: whether calls extend the cache that `init_cache` made.
      normalize_qk: layer norm with a gain on queries and keys.
      options: fields of `ModelConfig` that Flax has no name for (`flaxformer.interop.modules.OPTIONS`).
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
        self._hold(modules.attention_init(rngs.params(), config, out_features), config)
        self._keep(rngs, keep_rngs and dropout_rate > 0)
        self.dropout_rate, self.deterministic, self.decode = dropout_rate, deterministic, decode
        self.cached_key: Any = nnx.data(None)
        self.cached_value: Any = nnx.data(None)
        self.cache_index: Any = nnx.data(None)

    def init_cache(self, input_shape: tuple[int, ...], dtype: Any = jnp.float32) -> None:
        """An empty cache for inputs [*batch, slots, in_features]."""
        *batch, slots, _ = input_shape
        cache = modules.empty_cache(self.config, tuple(batch), slots, dtype)
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
          decode: the inputs, any number of tokens, follow those of the cache, which keeps them; S is its slots.
          is_causal: query t sees keys s ≤ t.
        """
        params: Attention = self.params
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
