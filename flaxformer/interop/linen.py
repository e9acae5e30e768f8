"""Flax Linen modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2))
>>> variables = model.init(jax.random.key(0), tokens)
>>> logits = model.apply(variables, tokens)      # apply(to_params(variables, model.config), model.config, tokens)

Weights are nested dictionaries by the names that they have in the pure tree, variables["params"]["blocks"]["0"];
running statistics are in the collection "batch_stats", and weights that no gradient trains in "frozen".
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from flaxformer.component import changed_weights
from flaxformer.config import ModelConfig
from flaxformer.interop import modules
from flaxformer.model import init, run
from flaxformer.model.layout import Layout
from flaxformer.nn.masks import Mask
from flaxformer.params import path_name
from flaxformer.parts.cache import KeysValues


def to_variables(params: Any, config: ModelConfig) -> dict[str, Any]:
    """The variables of a Linen module, {collection: nested dictionaries}, from the pure tree."""
    return _nest(params, modules.collections(params, config))


def to_params(variables: Mapping[str, Any], config: ModelConfig, layout: Layout = "unrolled") -> Any:
    """The pure tree that `flaxformer.model.apply` takes, from the variables of a Linen module of that layout.

    Raises:
      ValueError: a weight of the config is missing.
    """
    return _unnest(variables, modules.collections_of(config, layout))


def _nest(params: Any, names: Any) -> dict[str, Any]:
    return unflatten_dict(dict(zip(_paths(names), jax.tree.leaves(params), strict=True)))


def _unnest(variables: Mapping[str, Any], names: Any) -> Any:
    flat = flatten_dict({collection: dict(weights) for collection, weights in variables.items()})
    for path in _paths(names):
        if path not in flat:
            raise ValueError(f"the variables have no weight '{'/'.join(path)}'")
    return jax.tree.unflatten(jax.tree.structure(names), [flat[path] for path in _paths(names)])


def _paths(names: Any) -> list[tuple[str, ...]]:
    """(collection, name, name, …) of every weight."""
    return [(name, *path_name(path).split("/")) for path, name in jax.tree_util.tree_leaves_with_path(names)]


Held = dict[str, dict[str, nn.Variable]]


def _hold(module: nn.Module, names: Any, draw: Callable[[Array], Any]) -> Held:
    """The module's variables by collection and name; what is missing is drawn with the module's "params" key."""
    drawn = functools.cache(lambda: _nest(draw(module.make_rng("params")), names))
    return {
        collection: {
            name: module.variable(collection, name, lambda c=collection, n=name: drawn()[c][n]) for name in weights
        }
        for collection, weights in _nest(names, names).items()
    }


def _params(held: Held, names: Any) -> Any:
    values = {collection: {name: v.value for name, v in weights.items()} for collection, weights in held.items()}
    return _unnest(values, names)


def _update(held: Held, after: dict[str, Any]) -> None:
    """Write the weights that differ from those held."""
    for collection, weights in held.items():
        for name, variable in weights.items():
            new, old = jax.tree.leaves(after[collection][name]), jax.tree.leaves(variable.value)
            if any(one is not other for one, other in zip(new, old, strict=True)):
                variable.value = after[collection][name]


class Model(nn.Module):
    """Any model that a config describes; `Encoder`, `Decoder` and `EncoderDecoder` take those of their family alone.

    config: the architecture; its numbers are Python's, and static.
    deterministic: whether calls evaluate (True) or train (False); given here or to the call, where the two differ.
    layout: "unrolled" layers, or "scanned": one tree with a leading axis.
    """

    config: ModelConfig
    deterministic: bool | None = None
    layout: Layout = "unrolled"
    family: ClassVar[str | None] = None

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        mask: Mask | Array | None = None,
        **given: Any,
    ) -> Float[Array, "..."]:
        """Return the model's output: `flaxformer.model.apply`.

        Losses of components (`Aux.losses`), which training adds to that of the head, are sown into "losses".

        Args:
          inputs: tokens [*batch, T], vectors or images, as the config says.
          deterministic: False trains: dropout with `make_rng("dropout")`, and a BatchNorm normalises by the batch and
            moves its statistics (mutable=["batch_stats"]). It must be given, here or to the constructor, where
            training is known to differ from evaluation.
          mask: of self-attention: a `Mask`, or an array that is not zero where to attend, [*batch, heads, T, S].
          given: padding, positions, a source and so on; see `flaxformer.model.Given`.
        """
        config: Any = self.config
        modules.check_family(config, self.family, type(self).__name__)
        names = modules.collections_of(config, self.layout)
        held = _hold(self, names, lambda key: init(key, config, self.layout))
        params = _params(held, names)
        key = None
        is_read = modules.reads_deterministic(config, self.deterministic, deterministic)
        if is_read and not nn.merge_param("deterministic", self.deterministic, deterministic):
            # Where no number is drawn, any key says that this is training.
            key = self.make_rng("dropout") if modules.may_draw(config) else jax.random.key(0)
        outcome = run(params, config, inputs, modules.as_given(mask, given), dropout_key=key)
        if not self.is_initializing():
            _update(held, _nest(changed_weights(params, outcome.aux.weights), names))
            for name, loss in outcome.aux.losses.items():
                self.sow("losses", name, loss)
        return outcome.output


class Encoder(Model):
    """A model whose tokens see all others (mask_pattern "bidirectional"), such as a classifier."""

    family = "encoder"


class Decoder(Model):
    """A model whose tokens see those before them (mask_pattern "causal" or "prefix"), such as a language model."""

    family = "decoder"


class EncoderDecoder(Model):
    """A decoder that reads an encoder: `model.apply(variables, tokens, source=source)`."""

    family = "encoder-decoder"


class MultiHeadAttention(nn.Module):
    """`nn.MultiHeadDotProductAttention` with this package's attention: the same call, the same meaning of the fields.

    Weights are those of `flaxformer.config.Attention`: query [D, N, H], out [N, H_v, D_out] and so on. A query that
    may attend to nothing gets zeros where Flax averages all values; dropout draws for each head and sequence.

    num_kv_heads: heads of keys and values, where fewer than num_heads.
    dropout_rate: of the attention weights.
    decode: keys and values are kept in the collection "cache", whose positions are those of the inputs to `init`.
    normalize_qk: layer norm with a gain on queries and keys.
    options: fields of `Attention` that Flax has no name for (`flaxformer.interop.modules.OPTIONS`).
    """

    num_heads: int
    qkv_features: int | None = None
    out_features: int | None = None
    num_kv_heads: int | None = None
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    use_bias: bool = True
    decode: bool = False
    normalize_qk: bool = False
    options: Mapping[str, Any] | None = None

    @nn.compact
    def __call__(
        self,
        inputs_q: Float[Array, "*batch T D"],
        inputs_k: Float[Array, "*batch S D"] | None = None,
        inputs_v: Float[Array, "*batch S D"] | None = None,
        *,
        mask: Mask | Array | None = None,
        deterministic: bool | None = None,
        dropout_rng: Array | None = None,
        sow_weights: bool = False,
    ) -> Float[Array, "*batch T D_out"]:
        """Attention of inputs_q to inputs_k (left out: inputs_q) and inputs_v (left out: inputs_k).

        Args:
          mask: a `Mask`, or an array that is not zero where to attend, [*batch, heads, T, S].
          deterministic: False drops attention weights; given here or to the constructor, with a dropout_rate.
          dropout_rng: the key of dropout; left out, `make_rng("dropout")`.
          sow_weights: sow the weights as "attention_weights" into "intermediates".
        """
        width, read_width = inputs_q.shape[-1], (inputs_q if inputs_k is None else inputs_k).shape[-1]
        config = modules.attention_config(
            self.num_heads,
            width,
            self.qkv_features,
            self.num_kv_heads,
            read_width,
            self.use_bias,
            self.normalize_qk,
            self.options or {},
        )
        names = modules.attention_collections(config, self.out_features)
        params = _params(_hold(self, names, lambda key: modules.attention_init(key, config, self.out_features)), names)
        read, allowed = modules.project(params, config, inputs_q, inputs_k, inputs_v), modules.as_mask(mask)
        if self.decode:
            read, allowed = self._extend(config, read, allowed)
        key = None
        if self.dropout_rate > 0 and not nn.merge_param("deterministic", self.deterministic, deterministic):
            key = self.make_rng("dropout") if dropout_rng is None else dropout_rng
        y, weights = modules.attend(
            params,
            config,
            inputs_q,
            read,
            allowed,
            dropout_rate=self.dropout_rate,
            dropout_key=key,
            return_weights=sow_weights,
        )
        if sow_weights:
            self.sow("intermediates", "attention_weights", weights)
        return y

    def _extend(self, config: Any, new: KeysValues, mask: Mask | None) -> tuple[KeysValues, Mask | None]:
        """Keys and values of the cache with the new ones; the call that makes the cache reads its own inputs."""
        exists = self.has_variable("cache", "cache_index")
        *batch, capacity, _, _ = new.value.shape
        empty = modules.empty_cache(config, tuple(batch), capacity, new.value.dtype)
        key = self.variable("cache", "cached_key", lambda: empty.key)
        value = self.variable("cache", "cached_value", lambda: empty.value)
        index = self.variable("cache", "cache_index", lambda: jnp.int32(0))
        if not exists:
            return new, mask
        read, index.value, mask = modules.extend(KeysValues(key.value, value.value), index.value, new, mask)
        key.value, value.value = read.key, read.value
        return read, mask
