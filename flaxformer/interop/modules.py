"""What the Flax modules of both kinds share: which collection holds a weight, and multi-head attention by itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer.config import LayerNorm, LeCun, ModelConfig, NoPositions, RecurrentConfig
from flaxformer.model import Given, specs
from flaxformer.model.attention import Attention, CrossAttention, KeysValues, attention, keys_and_values
from flaxformer.model.cache import write
from flaxformer.model.interface import KINDS
from flaxformer.model.norm import Running
from flaxformer.model.transformer import Layout
from flaxformer.nn.attention import mix
from flaxformer.nn.dropout import dropout
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Causal, Explicit, Mask
from flaxformer.params import declare, initialise, trained_mask
from flaxformer.struct import UserError, did_you_mean

AnyConfig = ModelConfig | RecurrentConfig


def collections(params: Any, config: AnyConfig) -> Any:
    """A tree like params with the name of each weight's Flax collection.

    "params" are what gradients train; "batch_stats" a BatchNorm's running statistics; "frozen" what stays as drawn.
    """
    names = jax.tree.map(lambda trained: "params" if trained else "frozen", trained_mask(params, config))
    statistics = lambda node: jax.tree.map(lambda _: "batch_stats", node) if isinstance(node, Running) else node  # noqa: E731
    return jax.tree.map(statistics, names, is_leaf=lambda node: isinstance(node, Running))


def collections_of(config: AnyConfig, layout: Layout) -> Any:
    """`collections` of the weights that a config declares."""
    numbers = jax.tree.map(lambda spec: np.float32(0), specs(config))
    return collections(KINDS[type(config)].with_layout(numbers, layout), config)


def family(config: AnyConfig) -> str:
    """The kind of model that a config describes, in a word."""
    if isinstance(config, RecurrentConfig):
        return "recurrent"
    if config.encoder is not None:
        return "encoder-decoder"
    return "encoder" if config.visibility == "full" else "decoder"


def check_family(config: AnyConfig, expected: str | None, module: str) -> None:
    """Refuse a config of another family than the module's; None takes all."""
    if expected not in (None, family(config)):
        shown = "" if isinstance(config, RecurrentConfig) else f' (visibility "{config.visibility}")'
        raise UserError(f"config is of the family {family(config)}{shown}; {module} expects {expected}")


def moves(config: AnyConfig) -> bool:
    """Whether training moves running statistics."""
    return any(part.norm_kind.running for part in _parts(config))


def drops(config: AnyConfig) -> bool:
    """Whether training drops anything at random."""
    return any(part.dropout for part in _parts(config))


def _parts(config: AnyConfig) -> list[AnyConfig]:
    encoder = config.encoder if isinstance(config, ModelConfig) else None
    return [config] if encoder is None else [config, encoder]


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """A `Mask` from Flax's convention: an array [*batch, N, T, S], of any dtype, that is not zero where to attend."""
    return mask if mask is None or isinstance(mask, Mask) else Explicit(jnp.asarray(mask) != 0)


def as_given(mask: Mask | Array | None, others: Mapping[str, Any]) -> Given:
    """The arguments of a call beside its inputs."""
    return Given(mask=as_mask(mask), **others)  # type: ignore[typeddict-item]


# --- multi-head attention by itself ----------------------------------------------------------------------

OPTIONS = (
    "d_head",
    "d_value",
    "logit_scale_exponent",
    "logit_scale_width",
    "logit_cap",
    "query_key_norm",
    "share_query_key",
    "value_form",
    "initializer",
)
"""The fields of a `ModelConfig` that say what one attention computes."""


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
    """The config of an attention that Flax's arguments describe; `options` are fields that Flax has no name for.

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
        "initializer": LeCun(),
    }
    return ModelConfig(
        layers=1,
        d_model=in_features,
        heads=num_heads,
        key_value_heads=num_kv_heads,
        d_memory=in_kv_features or in_features,
        query_key_value_bias=use_bias,
        out_bias=use_bias,
        positions=NoPositions(),
        **described | dict(options),
    )


def attention_specs(config: ModelConfig, out_features: int | None) -> Attention:
    """Every weight's declaration, with an output of any width."""
    declared: Any = declare(CrossAttention, config)  # of Specs
    width = out_features or config.d_model
    if width == config.d_model:
        return declared
    if declared.out is None:
        raise UserError(f'out_features is {width} with value_form "full"; expected {config.d_model}, as in_features')
    resized = {
        name: dataclasses.replace(spec, shape=(*spec.shape[:-1], width), fan_out=width)
        for name, spec in (("out", declared.out), ("out_bias", declared.out_bias))
        if spec is not None
    }
    return declared.replace(**resized)


def attention_init(key: Array, config: ModelConfig, out_features: int | None) -> Attention:
    """Draw the weights of an attention."""
    return initialise(key, attention_specs(config, out_features), config.initial_constants, config.initial_std)


def empty_cache(config: ModelConfig, batch: tuple[int, ...], slots: int, dtype: Any = jnp.float32) -> KeysValues:
    """Zeros to write keys and values to."""
    sizes = config.sizes
    shape = (*batch, slots, sizes["key_value_heads"])
    return KeysValues(jnp.zeros((*shape, sizes["d_head"]), dtype), jnp.zeros((*shape, sizes["d_value"]), dtype))


def project(
    params: Attention,
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
    read = keys_and_values(params, config, inputs_k)
    return read if inputs_v is inputs_k else read.replace(value=keys_and_values(params, config, inputs_v).value)


def extend(
    cached: KeysValues, used: Int[Array, ""], new: KeysValues, mask: Mask | None
) -> tuple[KeysValues, Int[Array, ""], Mask]:
    """One step of decoding: the cache with new tokens after those `used`, how many are used then, and the causal mask.

    Raises:
      ValueError: more tokens than there are slots left, where the number used is known.
    """
    slots, length = cached.value.shape[-3], new.value.shape[-3]
    if not isinstance(used, jax.core.Tracer) and int(used) + length > slots:
        raise ValueError(f"{int(used)} of {slots} slots are used; {length} more tokens do not fit")
    return jax.tree.map(lambda old, x: write(old, x, used, axis=-3), cached, new), used + length, Causal(used) & mask


def attend(
    params: Attention,
    config: ModelConfig,
    inputs_q: Float[Array, "*batch T D"],
    read: KeysValues,
    mask: Mask | None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    return_weights: bool = False,
) -> tuple[Float[Array, "*batch T D_out"], Float[Array, "*batch N T S"] | None]:
    """Attention, and its weights A on request; with a key, dropout on A before it mixes the values."""
    if dropout_key is None:
        y, scores = attention(params, config, inputs_q, read, mask, keep=return_weights)
        return y, scores.weights
    weights = attention(params, config, inputs_q, read, mask, keep=True)[1].weights
    dropped = dropout(dropout_key, dropout_rate, weights)  # type: ignore[arg-type]
    mixed = mix(dropped, read.value, mask=mask)
    if params.out is not None:
        return linear(mixed, params.out, params.out_bias, contract=2), dropped
    y = mixed.sum(-2)
    return (y if params.out_bias is None else y + jnp.expand_dims(params.out_bias, range(y.ndim - 1))), dropped
