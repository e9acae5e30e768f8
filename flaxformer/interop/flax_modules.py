"""Functions that the Flax Linen and Flax NNX modules share: collections of weights, and multi-head attention."""

import dataclasses
import re
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from flaxformer.components import Attention, LayerNorm, LeCun, NoPositions
from flaxformer.components.cache import KeysValues, write
from flaxformer.components.component import Component, Context
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import classes_in
from flaxformer.core.params import Parameters, Spec, path_name, table
from flaxformer.core.struct import qualified_name
from flaxformer.core.weight_axes import trained_mask
from flaxformer.core.weight_specs import Declared, declarations, initialise
from flaxformer.model import ForwardInputs, specs
from flaxformer.model.blocks import BlockParams
from flaxformer.model.layout import Layout
from flaxformer.model.weights import with_layout
from flaxformer.nn.dropout import dropout
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Causal, Explicit, Mask
from flaxformer.system.errors import UserError, did_you_mean


def collections(params: Parameters, config: ModelConfig) -> PyTree[str]:
    """Return a tree like the weights with the name of each weight's Flax collection.

    Weights that gradients train are in "params". Of the others, running statistics, which start as a constant, are in
    "batch_stats", and drawn weights are in "frozen".
    """
    constant = {_without_layer(path) for path, spec in table(specs(config)) if _is_constant(spec)}

    def name(path: KeyPath, is_trained: bool) -> str:
        return _collection(is_trained, _without_layer(path_name(path)) in constant)

    return jax.tree_util.tree_map_with_path(name, trained_mask(params, config))


def _is_constant(spec: Spec) -> bool:
    """True if a weight's initial value is a constant."""
    return spec.init in ("zeros", "ones", "constant")


def _collection(is_trained: bool, is_constant: bool) -> str:
    if is_trained:
        return "params"
    return "batch_stats" if is_constant else "frozen"


def _without_layer(path: str) -> str:
    """Return the path of a weight without the index of its layer, which only unrolled layers have."""
    return re.sub(r"(/blocks)?/\d+/", "/", path)


def collections_of(config: ModelConfig, layout: Layout) -> PyTree[str]:
    """Return `collections` of the weights that a config declares."""
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), specs(config))
    return collections(jax.eval_shape(lambda params: with_layout(params, layout), shapes), config)


def family(config: ModelConfig) -> str:
    """Return the family of a config: "encoder", "decoder" or "encoder-decoder"."""
    if config.encoder is not None:
        return "encoder-decoder"
    return "encoder" if config.mask_pattern == "bidirectional" else "decoder"


def check_family(config: ModelConfig, expected: str | None, module: str) -> None:
    """Check that a config is of a module's family; None accepts every family.

    Raises:
      UserError: it is of another family.
    """
    if expected not in (None, family(config)):
        found = f'{family(config)} (mask_pattern "{config.mask_pattern}")'
        raise UserError(f"config is of the family {found}; {module} expects {expected}")


def reads_deterministic(config: ModelConfig, *given: bool | None) -> bool:
    """True if a call uses `deterministic`.

    It must then be given. That is so if training is known to differ from evaluation, because of dropout or statistics
    of the batch. User-defined components may differ too: with one, `deterministic` is used if it is given.
    """
    if any(part.dropout or part.mixes_batch for part in _parts(config)):
        return True
    return _has_user_components(config) and any(value is not None for value in given)


def has_dropout(config: ModelConfig) -> bool:
    """True if the model has dropout."""
    return any(part.dropout for part in _parts(config))


def may_draw(config: ModelConfig) -> bool:
    """True if training may draw random numbers, for dropout or in a user-defined component."""
    return has_dropout(config) or _has_user_components(config)


def _has_user_components(config: ModelConfig) -> bool:
    return any(issubclass(kind, Component) and "." in qualified_name(kind) for kind in classes_in(config))


def _parts(config: ModelConfig) -> list[ModelConfig]:
    return [config] if config.encoder is None else [config, config.encoder]


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """Return a `Mask` for Flax's convention: an array [*batch, N, T, S] of any dtype, nonzero at allowed pairs."""
    return mask if mask is None or isinstance(mask, Mask) else Explicit(jnp.asarray(mask) != 0)


def as_given(mask: Mask | Array | None, others: Mapping[str, Array | None]) -> ForwardInputs:
    """Return the arguments of a forward pass beside its inputs."""
    return cast(ForwardInputs, {"mask": as_mask(mask), **others})


# --- multi-head attention --------------------------------------------------------------------------------

OF_ATTENTION = (
    "d_head",
    "d_value",
    "scale_exponent",
    "scale_width",
    "logit_cap",
    "query_key_norm",
    "share_query_key",
    "value_form",
)
OPTIONS = (*OF_ATTENTION, "initializer")
"""Fields of `Attention` that determine its function, and the initializer of its weights."""


def attention_config(
    num_heads: int,
    in_features: int,
    qkv_features: int | None,
    num_kv_heads: int | None,
    in_kv_features: int | None,
    use_bias: bool,
    normalize_qk: bool,
    options: Mapping[str, object],
) -> ModelConfig:
    """Return the config of a model whose cross-attention has the arguments of Flax's class; `options` are `OPTIONS`.

    Raises:
      UserError: widths that do not fit, or an unknown option.
    """
    qkv_features = qkv_features or in_features
    if qkv_features % num_heads:
        raise UserError(f"qkv_features is {qkv_features}; expected a multiple of num_heads {num_heads}")
    for name in options:
        if name not in OPTIONS:
            raise UserError(f"options has '{name}'{did_you_mean(name, OPTIONS)}")
    attention = Attention(
        heads=num_heads,
        key_value_heads=num_kv_heads,
        bias=use_bias,
        out_bias=use_bias,
        d_head=qkv_features // num_heads,
        query_key_norm=LayerNorm(affine="gain", epsilon=1e-6) if normalize_qk else None,
    )
    config = ModelConfig(
        layers=1,
        d_model=in_features,
        d_memory=in_kv_features or in_features,
        attention=attention.replace(**{name: value for name, value in options.items() if name in OF_ATTENTION}),
        positions=NoPositions(),
    )
    return config.replace(initializer=options.get("initializer", LeCun()))


def attention_collections(config: ModelConfig, out_features: int | None) -> PyTree[str]:
    """Return the name of the Flax collection of each of an attention's weights."""
    declared = _attention_declarations(config, out_features)
    return jax.tree.map(lambda own: _collection(own.spec.trained, _is_constant(own.spec)), declared)


def attention_init(key: Array, config: ModelConfig, out_features: int | None) -> PyTree[Array]:
    """Draw the weights of an attention."""
    return initialise(key, _attention_declarations(config, out_features), config.initial_std)


def _attention_declarations(config: ModelConfig, out_features: int | None) -> PyTree[Declared]:
    """Return the declaration of every weight, with an output of any width."""
    declared: PyTree[Declared] = declarations(BlockParams, config).cross_attention
    width = out_features or config.d_model
    if width == config.d_model:
        return declared
    if declared.out is None:
        raise UserError(f'out_features is {width} with value_form "full"; expected {config.d_model}, as in_features')

    def resize(own: Declared | None) -> Declared | None:
        if own is None:
            return None
        spec = dataclasses.replace(own.spec, shape=(*own.spec.shape[:-1], width), fan_out=width)
        return dataclasses.replace(own, spec=spec)

    return declared.replace(out=resize(declared.out), out_bias=resize(declared.out_bias))


def empty_cache(
    config: ModelConfig, batch: tuple[int, ...], capacity: int, dtype: DTypeLike = jnp.float32
) -> KeysValues:
    """Return a cache of zeros."""
    sizes = config.sizes
    shape = (*batch, capacity, sizes["key_value_heads"])
    return KeysValues(jnp.zeros((*shape, sizes["d_head"]), dtype), jnp.zeros((*shape, sizes["d_value"]), dtype))


def project(
    params: PyTree[Array],
    config: ModelConfig,
    inputs_q: Float[Array, "*batch T D"],
    inputs_k: Float[Array, "*batch S D"] | None,
    inputs_v: Float[Array, "*batch S D"] | None,
) -> KeysValues:
    """Return keys and values; by default, inputs_k is inputs_q, and inputs_v is inputs_k, as in Flax.

    Raises:
      ValueError: inputs_v without inputs_k, or inputs of another width than the weights'.
    """
    if inputs_k is None and inputs_v is not None:
        raise ValueError("inputs_v is given without inputs_k; expected inputs_k alone, or both")
    inputs_k = inputs_q if inputs_k is None else inputs_k
    inputs_v = inputs_k if inputs_v is None else inputs_v
    widths = {"inputs_q": config.d_model, "inputs_k": config.d_memory, "inputs_v": config.d_memory}
    for (name, width), x in zip(widths.items(), (inputs_q, inputs_k, inputs_v), strict=True):
        if x.shape[-1] != width:
            raise ValueError(f"{name} is {x.shape}; expected vectors of width {width} last")
    own, context = config.cross, _context(None)
    read: KeysValues = own.keys_and_values(params, inputs_k, context)
    return read if inputs_v is inputs_k else read.replace(value=own.keys_and_values(params, inputs_v, context).value)


def _context(mask: Mask | None, *, return_intermediates: bool = False) -> Context:
    """Return the context of an attention outside of a model, without positions."""
    no_positions = jnp.zeros(0, jnp.int32)
    return Context(
        query_positions=no_positions,
        key_positions=no_positions,
        mask=mask,
        is_cross=True,
        return_intermediates=return_intermediates,
    )


def extend(
    cached: KeysValues, used: Int[Array, ""], new: KeysValues, mask: Mask | None
) -> tuple[KeysValues, Int[Array, ""], Mask]:
    """Append keys and values to a cache.

    Args:
      cached: the cache.
      used: number of its positions that are used.
      new: keys and values to append.
      mask: a further mask.

    Returns:
      The cache, the number of used positions, and the causal mask combined with `mask`.

    Raises:
      ValueError: the capacity is too small; not checked inside a compiled function.
    """
    capacity, length = cached.value.shape[-3], new.value.shape[-3]
    if not isinstance(used, jax.core.Tracer) and int(used) + length > capacity:
        raise ValueError(f"{int(used)} of {capacity} positions are used; {length} more tokens do not fit")
    return jax.tree.map(lambda old, x: write(old, x, used, axis=-3), cached, new), used + length, Causal(used) & mask


def attend(
    params: PyTree[Array],
    config: ModelConfig,
    inputs_q: Float[Array, "*batch T D"],
    read: KeysValues,
    mask: Mask | None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_weights: bool = False,
) -> tuple[Float[Array, "*batch T D_out"], Float[Array, "*batch N T S"] | None]:
    """Return the attention's output, and on request its weights A; with a key, A has dropout before it is applied."""
    context = _context(mask, return_intermediates=return_weights or dropout_key is not None)
    y, aux = config.cross.read(params, inputs_q, read, context)
    weights = aux.intermediates.get("weights")
    if dropout_key is None:
        return y, weights
    dropped = dropout(dropout_key, dropout_rate, weights)
    mixed = config.cross.combine(params, dropped, read.value, mask)
    if params.out is not None:
        return linear(mixed, params.out, params.out_bias, contract=2), dropped
    y = mixed.sum(-2)
    return (y if params.out_bias is None else y + jnp.expand_dims(params.out_bias, range(y.ndim - 1))), dropped
