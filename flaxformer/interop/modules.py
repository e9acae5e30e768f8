"""Shared parts of the Flax modules of both kinds: the collection of each weight, and multi-head attention by itself."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.component import Component, Context
from flaxformer.config import Attention, LayerNorm, LeCun, ModelConfig, NoPositions
from flaxformer.model import ForwardInputs, specs
from flaxformer.model.blocks import BlockParams
from flaxformer.model.layout import Layout
from flaxformer.model.transformer import with_layout
from flaxformer.nn.dropout import dropout
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Causal, Explicit, Mask
from flaxformer.params import Declared, Spec, declarations, initialise, path_name, table
from flaxformer.parts.cache import KeysValues, write
from flaxformer.struct import UserError, classes_in, did_you_mean, qualified_name
from flaxformer.weight_axes import trained_mask


def collections(params: Any, config: ModelConfig) -> Any:
    """A tree like params with the name of each weight's Flax collection.

    "params" are what gradients train. Of the others, "batch_stats" are running statistics, which are those that begin
    as a constant, and "frozen" is what stays as drawn.
    """
    constant = {_without_layer(path) for path, spec in table(specs(config)) if _is_constant(spec)}

    def name(path: Any, is_trained: bool) -> str:
        return _collection(is_trained, _without_layer(path_name(path)) in constant)

    return jax.tree_util.tree_map_with_path(name, trained_mask(params, config))


def _is_constant(spec: Spec) -> bool:
    """True if a weight begins as a constant."""
    return spec.init in ("zeros", "ones", "constant")


def _collection(is_trained: bool, is_constant: bool) -> str:
    if is_trained:
        return "params"
    return "batch_stats" if is_constant else "frozen"


def _without_layer(path: str) -> str:
    """The path of a weight without the number of its layer, which it has in one layout and not in the other."""
    return re.sub(r"(/blocks)?/\d+/", "/", path)


def collections_of(config: ModelConfig, layout: Layout) -> Any:
    """`collections` of the weights that a config declares."""
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), specs(config))
    return collections(jax.eval_shape(lambda params: with_layout(params, layout), shapes), config)


def family(config: ModelConfig) -> str:
    """The kind of model that a config describes, in a word."""
    if config.encoder is not None:
        return "encoder-decoder"
    return "encoder" if config.mask_pattern == "bidirectional" else "decoder"


def check_family(config: ModelConfig, expected: str | None, module: str) -> None:
    """Refuse a config of another family than the module's; None takes all."""
    if expected not in (None, family(config)):
        found = f'{family(config)} (mask_pattern "{config.mask_pattern}")'
        raise UserError(f"config is of the family {found}; {module} expects {expected}")


def reads_deterministic(config: ModelConfig, *given: bool | None) -> bool:
    """True if a call reads `deterministic`, and must be given it.

    So it is where training is known to differ from evaluation: by dropout, or by statistics of the batch. A component
    from outside the package may differ too: with one, `deterministic` is read where it is given.
    """
    if any(part.dropout or part.mixes_batch for part in _parts(config)):
        return True
    return _has_foreign_components(config) and any(value is not None for value in given)


def has_dropout(config: ModelConfig) -> bool:
    """True if the model drops activations in training."""
    return any(part.dropout for part in _parts(config))


def may_draw(config: ModelConfig) -> bool:
    """True if training may draw random numbers: for dropout, or in a component from outside the package."""
    return has_dropout(config) or _has_foreign_components(config)


def _has_foreign_components(config: ModelConfig) -> bool:
    return any(issubclass(kind, Component) and "." in qualified_name(kind) for kind in classes_in(config))


def _parts(config: ModelConfig) -> list[ModelConfig]:
    return [config] if config.encoder is None else [config, config.encoder]


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """A `Mask` from Flax's convention: an array [*batch, N, T, S], of any dtype, that is not zero where to attend."""
    return mask if mask is None or isinstance(mask, Mask) else Explicit(jnp.asarray(mask) != 0)


def as_given(mask: Mask | Array | None, others: Mapping[str, Any]) -> ForwardInputs:
    """The arguments of a call beside its inputs."""
    return ForwardInputs(mask=as_mask(mask), **others)  # type: ignore[typeddict-item]


# --- multi-head attention by itself ----------------------------------------------------------------------

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
"""The fields of `Attention` that say what it computes, and the initializer of its weights."""


def attention_config(
    num_heads: int,
    in_features: int,
    qkv_features: int | None,
    num_kv_heads: int | None,
    in_kv_features: int | None,
    use_bias: bool,
    normalize_qk: bool,
    options: Mapping[str, Any],
) -> ModelConfig:
    """A model whose cross-attention is the one that Flax's arguments describe; `options` are `OPTIONS`.

    Raises:
      UserError: widths that do not fit, or an option that says nothing about one attention.
    """
    qkv_features = qkv_features or in_features
    if qkv_features % num_heads:
        raise UserError(f"qkv_features is {qkv_features}; expected a multiple of num_heads {num_heads}")
    for name in options:
        if name not in OPTIONS:
            raise UserError(f"options has '{name}'{did_you_mean(name, OPTIONS)}")
    described: dict[str, Any] = {
        "d_head": qkv_features // num_heads,
        "query_key_norm": LayerNorm(affine="gain", epsilon=1e-6) if normalize_qk else None,
    }
    described |= {name: value for name, value in options.items() if name in OF_ATTENTION}
    return ModelConfig(
        layers=1,
        d_model=in_features,
        d_memory=in_kv_features or in_features,
        attention=Attention(
            heads=num_heads, key_value_heads=num_kv_heads, bias=use_bias, out_bias=use_bias, **described
        ),
        positions=NoPositions(),
        initializer=options.get("initializer", LeCun()),
    )


def attention_collections(config: ModelConfig, out_features: int | None) -> Any:
    """`collections` of an attention's weights."""
    declared = _attention_declarations(config, out_features)
    return jax.tree.map(lambda own: _collection(own.spec.trained, _is_constant(own.spec)), declared)


def attention_init(key: Array, config: ModelConfig, out_features: int | None) -> Any:
    """Draw the weights of an attention."""
    return initialise(key, _attention_declarations(config, out_features), config.initial_std)


def _attention_declarations(config: ModelConfig, out_features: int | None) -> Any:
    """Every weight's declaration, with an output of any width."""
    declared = declarations(BlockParams, config).cross_attention
    width = out_features or config.d_model
    if width == config.d_model:
        return declared
    if declared.out is None:
        raise UserError(f'out_features is {width} with value_form "full"; expected {config.d_model}, as in_features')

    def resized(own: Declared | None) -> Declared | None:
        if own is None:
            return None
        spec = dataclasses.replace(own.spec, shape=(*own.spec.shape[:-1], width), fan_out=width)
        return dataclasses.replace(own, spec=spec)

    return declared.replace(out=resized(declared.out), out_bias=resized(declared.out_bias))


def empty_cache(config: ModelConfig, batch: tuple[int, ...], capacity: int, dtype: Any = jnp.float32) -> KeysValues:
    """Zeros to write keys and values to."""
    sizes = config.sizes
    shape = (*batch, capacity, sizes["key_value_heads"])
    return KeysValues(jnp.zeros((*shape, sizes["d_head"]), dtype), jnp.zeros((*shape, sizes["d_value"]), dtype))


def project(
    params: Any,
    config: ModelConfig,
    inputs_q: Float[Array, "*batch T D"],
    inputs_k: Float[Array, "*batch S D"] | None,
    inputs_v: Float[Array, "*batch S D"] | None,
) -> KeysValues:
    """Keys and values by Flax's convention: inputs_k left out is inputs_q, and inputs_v left out is inputs_k.

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
    """The context of an attention by itself, without positions."""
    nowhere = jnp.zeros(0, jnp.int32)
    return Context(
        query_positions=nowhere,
        key_positions=nowhere,
        mask=mask,
        is_cross=True,
        return_intermediates=return_intermediates,
    )


def extend(
    cached: KeysValues, used: Int[Array, ""], new: KeysValues, mask: Mask | None
) -> tuple[KeysValues, Int[Array, ""], Mask]:
    """One step of decoding: the cache with new tokens after those `used`, how many are used then, and the causal mask.

    Raises:
      ValueError: more tokens than there are positions left, where the number used is known.
    """
    capacity, length = cached.value.shape[-3], new.value.shape[-3]
    if not isinstance(used, jax.core.Tracer) and int(used) + length > capacity:
        raise ValueError(f"{int(used)} of {capacity} positions are used; {length} more tokens do not fit")
    return jax.tree.map(lambda old, x: write(old, x, used, axis=-3), cached, new), used + length, Causal(used) & mask


def attend(
    params: Any,
    config: ModelConfig,
    inputs_q: Float[Array, "*batch T D"],
    read: KeysValues,
    mask: Mask | None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_weights: bool = False,
) -> tuple[Float[Array, "*batch T D_out"], Float[Array, "*batch N T S"] | None]:
    """Attention, and its weights A on request; with a key, dropout on A before it is applied to the values."""
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
