"""Core of the Flax Linen and NNX modules: collections of weights, keys of training, and multi-head attention."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from flaxformer.components import Attention, LayerNorm, LeCun, NoPositions
from flaxformer.components.cache import KeysValues, write
from flaxformer.components.component import Component, Context, replace_weights
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import classes_in
from flaxformer.core.params import Spec
from flaxformer.core.points import Edits
from flaxformer.core.struct import qualified_name
from flaxformer.core.weight_specs import declarations, initialise
from flaxformer.model import ForwardInputs, Transformer, run, specs
from flaxformer.model.blocks import BlockParams
from flaxformer.model.layout import Layout
from flaxformer.model.weights import stack_like, with_layout
from flaxformer.nn.masks import Causal, Explicit, Mask
from flaxformer.system.errors import UserError, did_you_mean

Losses = Mapping[str, Array]


def collection(spec: Spec) -> str:
    """Return the Flax collection of a weight.

    Weights that gradients train are in "params". Of the others, running statistics, which start as a constant, are in
    "batch_stats", and drawn weights are in "frozen".
    """
    if spec.trained:
        return "params"
    return "batch_stats" if spec.init in ("zeros", "ones", "constant") else "frozen"


def collections(params: Transformer, config: ModelConfig) -> PyTree[str]:
    """Return a tree like the weights, in any layout, with the collection of each weight."""
    return stack_like(jax.tree.map(collection, specs(config)), params)


def collections_of(config: ModelConfig, layout: Layout) -> PyTree[str]:
    """Return `collections` of the weights that a config declares."""
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), specs(config))
    return collections(jax.eval_shape(lambda params: with_layout(params, layout), shapes), config)


def check_family(config: ModelConfig, expected: str | None, module: str) -> None:
    """Check that a config is an "encoder", "decoder" or "encoder-decoder"; None accepts every family.

    Raises:
      UserError: it is of another family.
    """
    family = "encoder" if config.mask_pattern == "bidirectional" else "decoder"
    family = family if config.encoder is None else "encoder-decoder"
    if expected not in (None, family):
        raise UserError(
            f'config is of the family {family} (mask_pattern "{config.mask_pattern}"); {module} expects {expected}'
        )


def _has_dropout(config: ModelConfig) -> bool:
    return bool(config.dropout or (config.encoder and config.encoder.dropout))


def _has_user_components(config: ModelConfig) -> bool:
    """True if a component is from outside the package: it may use the batch and random numbers in training."""
    return any("." in qualified_name(kind) for kind in classes_in(config) if issubclass(kind, Component))


def may_draw(config: ModelConfig) -> bool:
    """True if training may draw random numbers."""
    return _has_dropout(config) or _has_user_components(config)


def training_key(
    config: ModelConfig, is_set: bool, is_deterministic: Callable[[], bool], draw: Callable[[], Array]
) -> Array | None:
    """Return the random key of a call in training; None for evaluation.

    Args:
      is_set: True if `deterministic` is set. Then, and for a model whose training is known to differ from evaluation,
        `is_deterministic` is called, which may refuse a value that is missing.
      draw: function that draws a key, if training may draw random numbers.
    """
    mixes_batch = config.mixes_batch or (config.encoder is not None and config.encoder.mixes_batch)
    differs = _has_dropout(config) or mixes_batch or (is_set and _has_user_components(config))
    if not differs or is_deterministic():
        return None
    return draw() if may_draw(config) else jax.random.key(0)  # if no number is drawn, any key selects training


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """Return a `Mask` for Flax's convention: an array [*batch, N, T, S] of any dtype, nonzero at allowed pairs."""
    return mask if mask is None or isinstance(mask, Mask) else Explicit(jnp.asarray(mask) != 0)


def forward(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    mask: Mask | Array | None,
    arguments: Mapping[str, Array | None],
    key: Array | None,
) -> tuple[Float[Array, "..."], Transformer, Losses]:
    """Return a model's output, the weights after the call, and the losses of components."""
    call = cast(ForwardInputs, {"mask": as_mask(mask), **arguments})
    outcome = run(params, config, inputs, call, dropout_key=key)
    return outcome.output, replace_weights(params, outcome.aux.weights), outcome.aux.losses


# --- multi-head attention --------------------------------------------------------------------------------

OPTIONS = (
    "d_head",
    "d_value",
    "scale_exponent",
    "scale_width",
    "logit_cap",
    "query_key_norm",
    "share_query_key",
    "value_form",
    "initializer",
)
"""Fields of `Attention` that determine its function, and the initializer of its weights."""


def attention_config(
    num_heads: int,
    in_features: int,
    qkv_features: int | None,
    num_kv_heads: int | None,
    in_kv_features: int | None,
    use_bias: bool,
    normalize_qk: bool,
    options: Mapping[str, object] | None,
) -> ModelConfig:
    """Return the config of a model whose cross-attention has the arguments of Flax's class; `options` are `OPTIONS`.

    Raises:
      UserError: widths that do not fit, or an unknown option.
    """
    qkv_features, options = qkv_features or in_features, dict(options or {})
    if qkv_features % num_heads:
        raise UserError(f"qkv_features is {qkv_features}; expected a multiple of num_heads {num_heads}")
    for name in options:
        if name not in OPTIONS:
            raise UserError(f"options has '{name}'{did_you_mean(name, OPTIONS)}")
    initializer, d_memory = options.pop("initializer", LeCun()), in_kv_features or in_features
    attention = Attention(
        heads=num_heads,
        key_value_heads=num_kv_heads,
        bias=use_bias,
        out_bias=use_bias,
        d_head=qkv_features // num_heads,
        query_key_norm=LayerNorm(affine="gain", epsilon=1e-6) if normalize_qk else None,
    ).replace(**options)
    config = ModelConfig(layers=1, d_model=in_features, d_memory=d_memory, attention=attention, positions=NoPositions())
    return config.replace(initializer=initializer)


def attention_weights(
    config: ModelConfig, out_features: int | None
) -> tuple[PyTree[str], Callable[[Array], PyTree[Array]]]:
    """Return the collections of an attention's weights, with an output of any width, and the function that draws them.

    Raises:
      UserError: the attention has no output map.
    """
    declared: PyTree = declarations(BlockParams, config).cross_attention
    width = out_features or config.d_model
    if width != config.d_model:
        if declared.out is None:
            raise UserError(
                f'out_features is {width} with value_form "full"; expected {config.d_model}, as in_features'
            )
        resized: PyTree = declarations(BlockParams, config.replace(d_model=width)).cross_attention
        declared = declared.replace(out=resized.out, out_bias=resized.out_bias)
    names = jax.tree.map(lambda weight: collection(weight.spec), declared)
    return names, lambda key: initialise(key, declared, config.initial_value)


class HeadCache(NamedTuple):
    """Keys and values of an attention's earlier calls, and the number of positions that they use, by Flax's names."""

    cached_key: Float[Array, "*batch S K d_k"]
    cached_value: Float[Array, "*batch S K d_v"]
    cache_index: Int[Array, ""]

    @classmethod
    def empty(cls, config: ModelConfig, shape: tuple[int, ...], dtype: DTypeLike) -> "HeadCache":
        """Return a cache of zeros for inputs [*batch, capacity]."""
        heads, key, value = (config.sizes[name] for name in ("key_value_heads", "d_head", "d_value"))
        return cls(jnp.zeros((*shape, heads, key), dtype), jnp.zeros((*shape, heads, value), dtype), jnp.int32(0))

    def append(self, new: KeysValues) -> "HeadCache":
        """Return the cache with keys and values appended.

        Raises:
          ValueError: the capacity is too small; not checked inside a compiled function.
        """
        used, capacity, length = self.cache_index, self.cached_value.shape[-3], new.value.shape[-3]
        if not isinstance(used, jax.core.Tracer) and int(used) + length > capacity:
            raise ValueError(f"{int(used)} of {capacity} positions are used; {length} more tokens do not fit")
        assert new.key is not None  # only a frozen pattern has no keys
        key = write(self.cached_key, new.key, used, axis=-3)
        return HeadCache(key, write(self.cached_value, new.value, used, axis=-3), used + length)


AttentionInputs = tuple[
    Float[Array, "*batch T D"], Float[Array, "*batch S D"] | None, Float[Array, "*batch S D"] | None
]
"""Inputs of queries, keys and values; by default, keys have the inputs of queries, and values the inputs of keys."""


def attend(
    params: PyTree[Array],
    config: ModelConfig,
    inputs: AttentionInputs,
    mask: Mask | Array | None,
    cache: HeadCache | None,
    drop: Callable[[Array], Array] | None,
    return_weights: bool,
) -> tuple[Float[Array, "*batch T D_out"], Float[Array, "*batch N T S"] | None, HeadCache | None]:
    """Return the output of multi-head attention, on request its weights A, and the extended cache.

    `drop` is the dropout of A before it is applied. With a cache, query t attends to all earlier positions.

    Raises:
      ValueError: inputs_v without inputs_k, inputs of another width than the weights', or a full cache.
    """
    no_positions = jnp.zeros(0, jnp.int32)
    context = Context(query_positions=no_positions, key_positions=no_positions, is_cross=True)
    read, mask = _keys_and_values(params, config, inputs, context), as_mask(mask)
    if cache is not None:
        mask, cache = Causal(cache.cache_index) & mask, cache.append(read)
        read = KeysValues(cache.cached_key, cache.cached_value)
    edits = Edits.of(None if drop is None else {"weights": drop})
    context = context.replace(mask=mask, return_intermediates=return_weights, edits=edits)
    y, aux = config.cross.read(params, inputs[0], read, context)
    return y, aux.intermediates.get("weights"), cache


def _keys_and_values(
    params: PyTree[Array], config: ModelConfig, inputs: AttentionInputs, context: Context
) -> KeysValues:
    inputs_q, inputs_k, inputs_v = inputs
    if inputs_k is None and inputs_v is not None:
        raise ValueError("inputs_v is given without inputs_k; expected inputs_k alone, or both")
    inputs_k = inputs_q if inputs_k is None else inputs_k
    inputs_v = inputs_k if inputs_v is None else inputs_v
    widths = {"inputs_q": config.d_model, "inputs_k": config.d_memory, "inputs_v": config.d_memory}
    for (name, width), x in zip(widths.items(), (inputs_q, inputs_k, inputs_v), strict=True):
        if x.shape[-1] != width:
            raise ValueError(f"{name} is {x.shape}; expected vectors of width {width} last")
    read: KeysValues = config.cross.keys_and_values(params, inputs_k, context)
    if inputs_v is inputs_k:
        return read
    return read.replace(value=config.cross.keys_and_values(params, inputs_v, context).value)
