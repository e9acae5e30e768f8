"""Construction of the `Context` of a forward pass, from masks, positions and memory."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.components.cache import write
from flaxformer.components.component import Context, OwnWeights
from flaxformer.components.positions import Positions
from flaxformer.config import ModelConfig
from flaxformer.model.cache import Cache
from flaxformer.model.call import ForwardInputs
from flaxformer.nn.masks import Mask, Padding


def stack_context(config: ModelConfig, memory: Array | None, memory_valid: Array | None, **more: Any) -> Context:
    """Return the context of a stack with a memory or without; by default, it has no positions."""
    empty = jnp.zeros(0, jnp.int32)
    return Context(
        **({"query_positions": empty, "key_positions": empty} | more),
        source=memory,
        source_mask=None if memory_valid is None else Padding(memory_valid),
        layers=config.layers,
        reads_source=config.reads_memory,
    )


def self_attention_mask(
    config: ModelConfig, arguments: ForwardInputs, cache: Cache | None, offset: int | Array
) -> Mask | None:
    """Return the mask of self-attention: the intersection of the architecture's, padding, and the caller's."""
    mask = config.mask(prefix=arguments.get("prefix"), offset=offset)
    valid, further = arguments.get("valid") if cache is None else cache.valid, arguments.get("mask")
    mask = mask if valid is None else Padding(valid) & mask
    return mask if further is None else further & mask


def append_inputs(
    cache: Cache, config: ModelConfig, inputs: Array, arguments: ForwardInputs
) -> tuple[Cache, Int[Array, "*batch T"]]:
    """Return the cache after the inputs of a call, without their states; and the positions of the inputs."""
    shape, offset = inputs.shape if config.inputs.reads == "tokens" else inputs.shape[:-1], cache.used
    valid, prefix = arguments.get("valid"), arguments.get("prefix")
    cache, positions = cache.advance(jnp.ones(shape, bool) if valid is None else jnp.asarray(valid))
    if cache.prefix is not None and prefix is not None:
        cache = cache.replace(prefix=jnp.broadcast_to(jnp.asarray(prefix, jnp.int32), cache.prefix.shape))
    if cache.tokens is not None:
        tokens = inputs if valid is None else jnp.where(valid, inputs, 0)
        cache = cache.replace(tokens=write(cache.tokens, tokens, offset, axis=-1))
    return cache, positions


def cache_context(config: ModelConfig, context: Context, cache: Cache) -> Context | None:
    """Return the context of all tokens of a cache, for a mixer without a decoding state; None without capacity."""
    valid, positions = cache.valid, cache.positions
    if valid is None or positions is None:
        return None
    return context.replace(
        tokens=cache.tokens,
        query_positions=positions,
        given_positions=(positions, positions),
        mask=Padding(valid) & config.mask(prefix=cache.prefix),
        bias=position_bias(config.positions, context.scheme_weights, config, positions, positions),
        valid=valid,
        offset=None,
    )


def position_bias(
    scheme: Positions,
    weights: OwnWeights,
    config: ModelConfig,
    query_positions: Int[Array, "*batch T"],
    key_positions: Int[Array, "*batch S"],
) -> Float[Array, "*batch N T S"] | None:
    """Return the bias of a position scheme for the logits of self-attention; None for none."""
    heads, bidirectional = config.sizes.get("heads", 1), config.mask_pattern != "causal"
    return scheme.bias(weights, query_positions, key_positions, heads, bidirectional)


def with_attention_positions(context: Context, config: ModelConfig, weights: OwnWeights) -> Context:
    """Return the context with the position scheme of a block's self-attention, if it is another than the model's."""
    scheme = config.attention_positions
    if scheme is None:
        return context
    bias = position_bias(scheme, weights, config, context.query_positions, context.key_positions)
    return context.replace(bias=bias, scheme=scheme, scheme_weights=weights)


def last_index(shape: tuple[int, ...], valid: Bool[Array, "*batch T"] | None) -> Int[Array, "*batch 1"]:
    """Return the index of the last token of each sequence that is not padding, for tokens of a shape [*batch, T]."""
    valid = jnp.ones(shape, bool) if valid is None else valid
    return shape[-1] - 1 - valid[..., ::-1].argmax(-1, keepdims=True)


def last_token(x: Float[Array, "*batch T D"], context: Context) -> tuple[Float[Array, "*batch 1 D"], Context]:
    """Return the last token of each sequence that is not padding, and its context."""
    shape = x.shape[:-1]
    index = last_index(shape, context.valid)
    positions = jnp.take_along_axis(jnp.broadcast_to(context.query_positions, shape), index, axis=-1)
    tokens = None if context.tokens is None else jnp.take_along_axis(context.tokens, index, axis=-1)
    last = jnp.take_along_axis(x, index[..., None], axis=-2)
    return last, context.replace(query_positions=positions, tokens=tokens, valid=jnp.ones_like(index, bool))
