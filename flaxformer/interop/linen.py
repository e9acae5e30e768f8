"""Flax Linen modules over the pure functions: `Encoder`, `Decoder`, `EncoderDecoder`, `MultiHeadAttention`.

>>> model = Decoder(ModelConfig(vocabulary=256, layers=2))
>>> variables = model.init(jax.random.key(0), tokens)
>>> logits = model.apply(variables, tokens)      # apply(to_params(variables, model.config), model.config, tokens)

Weights are nested dictionaries with the names of the pure tree, such as `variables["params"]["blocks"]["0"]`; running
statistics are in the collection "batch_stats", and weights that gradients do not train are in "frozen".
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.params import path_name
from flaxformer.interop import flax_modules
from flaxformer.interop.flax_modules import HeadCache
from flaxformer.model import Transformer, init
from flaxformer.model.layout import Layout
from flaxformer.nn.dropout import dropout
from flaxformer.nn.masks import Mask

Collections = Mapping[str, Mapping[str, PyTree]]
"""Variables of a Linen module: nested dictionaries by collection and name."""


def to_variables(params: Transformer, config: ModelConfig) -> Collections:
    """Convert the pure tree to the variables of a Linen module."""
    return _nest(params, flax_modules.collections(params, config))


def to_params(variables: Collections, config: ModelConfig, layout: Layout = "unrolled") -> Transformer:
    """Convert the variables of a Linen module to the pure tree for `flaxformer.model.apply`.

    Raises:
      ValueError: a weight of the config is missing.
    """
    return _unnest(variables, flax_modules.collections_of(config, layout))


def _nest(params: PyTree, names: PyTree[str]) -> Collections:
    return unflatten_dict(dict(zip(_paths(names), jax.tree.leaves(params), strict=True)))


def _unnest(variables: Collections, names: PyTree[str]) -> PyTree:
    flat = flatten_dict({collection: dict(weights) for collection, weights in variables.items()})
    for path in _paths(names):
        if path not in flat:
            raise ValueError(f"the variables have no weight '{'/'.join(path)}'; expected every weight of the config")
    return jax.tree.unflatten(jax.tree.structure(names), [flat[path] for path in _paths(names)])


def _paths(names: PyTree[str]) -> list[tuple[str, ...]]:
    """Return the path (collection, name, name, …) of every weight."""
    return [(name, *path_name(path).split("/")) for path, name in jax.tree_util.tree_leaves_with_path(names)]


class _Holder(nn.Module):
    """Base of modules whose variables are a tree of weights."""

    def _weights(self, names: PyTree[str], draw: Callable[[Array], PyTree]) -> PyTree[Array]:
        """Return the weights in the variables; missing ones are drawn with the key "params"."""
        drawn = functools.cache(lambda: _nest(draw(self.make_rng("params")), names))
        values = {
            group: {name: self.variable(group, name, lambda g=group, n=name: drawn()[g][n]).value for name in weights}
            for group, weights in _nest(names, names).items()
        }
        return _unnest(values, names)

    def _update(self, after: PyTree[Array], names: PyTree[str]) -> None:
        """Write the weights that have changed."""
        for group, weights in _nest(after, names).items():
            for name, new in weights.items():
                old: PyTree = self.get_variable(group, name)
                if any(map(operator.is_not, jax.tree.leaves(new), jax.tree.leaves(old))):
                    self.put_variable(group, name, new)


class Model(_Holder):
    """Model of any config; `Encoder`, `Decoder` and `EncoderDecoder` accept only configs of their family.

    config: the architecture, whose numbers are Python numbers and static.
    deterministic: True evaluates, False trains; required, here or in the call, if the two differ.
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
        **arguments: Array | None,
    ) -> Float[Array, "..."]:
        """Return the model's output, with arguments as in `interop.nnx.Model`; losses are sown into "losses".

        With `deterministic=False`, `make_rng("dropout")` draws random numbers, and statistics of the batch need
        mutable=["batch_stats"].

        Raises:
          UserError: the config is not of the class's family.
        """
        flax_modules.check_family(self.config, self.family, type(self).__name__)
        names = flax_modules.collections_of(self.config, self.layout)
        params = self._weights(names, lambda key: init(key, self.config, self.layout))
        key = flax_modules.training_key(
            self.config,
            self.deterministic is not None or deterministic is not None,
            lambda: nn.merge_param("deterministic", self.deterministic, deterministic),
            lambda: self.make_rng("dropout"),
        )
        output, after, losses = flax_modules.forward(params, self.config, inputs, mask, arguments, key)
        if not self.is_initializing():
            self._update(after, names)
            for name, loss in losses.items():
                self.sow("losses", name, loss)
        return output


class Encoder(Model):
    """Model with bidirectional attention (mask_pattern "bidirectional"), such as a classifier."""

    family = "encoder"


class Decoder(Model):
    """Model with causal attention (mask_pattern "causal" or "prefix"), such as a language model."""

    family = "decoder"


class EncoderDecoder(Model):
    """Decoder with cross-attention to an encoder: `model.apply(variables, tokens, source=source)`."""

    family = "encoder-decoder"


class MultiHeadAttention(_Holder):
    """`nn.MultiHeadDotProductAttention` with this package's attention, with equal arguments and fields.

    The weights, zeros for a query without any allowed key, and `options` are as in `interop.nnx.MultiHeadAttention`.
    With `decode`, the capacity of the collection "cache" is the length of the inputs to `init`.
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
    options: Mapping[str, object] | None = None

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
        """Return the attention of inputs_q to inputs_k (by default inputs_q) and inputs_v (by default inputs_k).

        `mask` is a `Mask`, or Flax's array; the key of dropout is `dropout_rng`, or `make_rng("dropout")`;
        `sow_weights` sows the attention weights as "attention_weights" into "intermediates".
        """
        width, read_width = inputs_q.shape[-1], (inputs_q if inputs_k is None else inputs_k).shape[-1]
        sizes = (self.num_heads, width, self.qkv_features, self.num_kv_heads, read_width)
        config = flax_modules.attention_config(*sizes, self.use_bias, self.normalize_qk, self.options)
        params, drop = self._weights(*flax_modules.attention_weights(config, self.out_features)), None
        if self.dropout_rate > 0 and not nn.merge_param("deterministic", self.deterministic, deterministic):
            key = self.make_rng("dropout") if dropout_rng is None else dropout_rng
            drop = functools.partial(dropout, key, self.dropout_rate)
        is_extended = self.has_variable("cache", "cache_index")  # not in the call that creates the cache
        stored = self._cache(config, inputs_q if inputs_k is None else inputs_k) if self.decode else {}
        former = HeadCache(**{name: variable.value for name, variable in stored.items()}) if is_extended else None
        inputs = (inputs_q, inputs_k, inputs_v)
        y, weights, cache = flax_modules.attend(params, config, inputs, mask, former, drop, sow_weights)
        for name, variable in stored.items() if cache is not None else ():
            variable.value = getattr(cache, name)
        if sow_weights:
            self.sow("intermediates", "attention_weights", weights)
        return y

    def _cache(self, config: ModelConfig, inputs: Float[Array, "*batch S D"]) -> dict[str, nn.Variable]:
        empty = HeadCache.empty(config, inputs.shape[:-1], inputs.dtype)._asdict()
        return {name: self.variable("cache", name, lambda value=value: value) for name, value in empty.items()}
