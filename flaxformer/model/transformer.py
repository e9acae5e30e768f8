"""The Transformer: encoder, decoder, or both, as pure functions of parameters, config and inputs."""

import math
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.config import ModelConfig, Tokens
from flaxformer.model.attention import Rows, as_rows, keys_and_values
from flaxformer.model.blocks import Block, BlockIntermediates, block
from flaxformer.model.cache import Cache, LayerCache
from flaxformer.model.call import Call, Given
from flaxformer.model.embedding import Embedding, embed
from flaxformer.model.head import Head, predict
from flaxformer.model.norm import Norm, normalise
from flaxformer.model.remat import rematerialised
from flaxformer.nn.dropout import dropout
from flaxformer.nn.masks import Mask, Padding
from flaxformer.params import Parameters, declare, initialise, param, stack, stream, subtree, unstack
from flaxformer.pytree import Node
from flaxformer.sharding import gathered
from flaxformer.struct import UserError

Layout = Literal["auto", "unrolled", "scanned"]
DEEPEST_UNROLLED = 12
"""Unrolled layers run 1.6 times as fast on a CPU; scanned ones compile in a time that does not grow with depth."""


class Transformer(Parameters):
    """All weights. `blocks` is a tuple of per-layer trees, or one tree with a leading `layers` axis."""

    embedding: Embedding = subtree()
    embedding_norm: Norm | None = subtree(when="norm.embedding")
    buckets: Float[Array, "buckets heads"] | None = param(init="positions", decay=False, when="positions.has_buckets")
    encoder: "Transformer | None" = subtree(when="encoder", config="encoder")
    blocks: tuple[Block, ...] = subtree(repeat="layers")
    final_norm: Norm | None = subtree(when="norm.final")
    head: Head = subtree()


class Intermediates(Node):
    """What each stage produced: the stream after embedding, every block's branches, the head's input, the encoder."""

    embedded: Float[Array, "*batch T D"]
    blocks: tuple[BlockIntermediates, ...]
    final: Float[Array, "*batch T D"]
    encoder: "Intermediates | None" = None


class Outcome(Node):
    """All that one call of a model produces, each of the model's own kind."""

    output: Array
    params: Any
    """The weights after the call: running statistics have moved in training, all else is as it was."""
    cache: Any = None
    intermediates: Any = None


def specs(config: ModelConfig) -> Transformer:
    """Every weight's declaration under a config: shapes, axes, initialisers, decay."""
    return declare(Transformer, config)


def init(key: Array, config: ModelConfig, layout: Layout = "unrolled") -> Transformer:
    """Draw the weights. The numbers depend on key and path alone, never on the layout or on other weights."""
    return with_layout(_drawn(stream(key, "parameters"), config), layout)


def _drawn(key: Array, config: ModelConfig) -> Transformer:
    drawn = initialise(key, specs(config).replace(encoder=None), config.initial_constants, config.initial_std)
    return drawn if config.encoder is None else drawn.replace(encoder=_drawn(stream(key, "encoder"), config.encoder))


def with_layout(params: Transformer, layout: Layout) -> Transformer:
    """The same weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    layers = unstack(params.blocks) if isinstance(params.blocks, Block) else params.blocks
    scanned = layout == "scanned" or (layout == "auto" and len(layers) > DEEPEST_UNROLLED)
    encoder = None if params.encoder is None else with_layout(params.encoder, layout)
    return params.replace(blocks=stack(layers) if scanned and layers else layers, encoder=encoder)


def encode(
    params: Transformer, config: ModelConfig, source: Array, valid: Bool[Array, "*batch S"] | None = None
) -> Float[Array, "*batch S D"]:
    """The final output of a model's encoder: the `memory` that its decoder reads."""
    return _encoded(params, config, {"source": source, "source_valid": valid}).output


def new_cache(
    params: Transformer, config: ModelConfig, batch: tuple[int, ...], slots: int, **given: Unpack[Given]
) -> Cache:
    """An empty cache for `slots` tokens of each sequence of a batch; the memory's keys and values are in it already.

    Raises:
      UserError: a model whose tokens see later ones, or more slots than the model has positions for.
    """
    if config.visibility == "full" or config.norm_kind.leaks:
        why = 'visibility is "full"' if config.visibility == "full" else 'norm_kind.over is "sequence"'
        raise UserError(f"{why}, so that a token depends on later ones; expected a causal model to decode with")
    if config.max_length is not None and slots > config.max_length:
        raise UserError(f"the cache has {slots} slots; expected at most the model's max_length {config.max_length}")
    memory, memory_valid, _ = _memory(params, config, given)
    sizes = config.sizes
    shape = (math.prod(batch) * sizes["key_value_heads"], slots)

    def layer(block: Block) -> LayerCache:
        dtype = jnp.result_type(block.attention.value, *jax.tree.leaves(params.embedding))
        key = None if block.attention.query is None else jnp.zeros((*shape, sizes["d_head"]), dtype)
        own = Rows(key=key, value=jnp.zeros((*shape, sizes["d_value"]), dtype))
        if memory is None:
            return LayerCache(own)
        return LayerCache(own, as_rows(keys_and_values(block.memory, config, memory), memory_valid))  # type: ignore[arg-type]

    blocks = params.blocks
    return Cache(
        layers=tuple(map(layer, blocks)) if isinstance(blocks, tuple) else jax.vmap(layer)(blocks),
        used=jnp.int32(0),
        valid=jnp.zeros((*batch, slots), bool),
        positions=jnp.zeros((*batch, slots), jnp.int32),
        memory_valid=memory_valid,
    )


def run(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    given: Given,
    *,
    dropout_key: Array | None = None,
    cache: Cache | None = None,
    keep: bool = False,
    remat: str = "none",
    table: Array | None = None,
) -> Outcome:
    """One call of the model, with all that it produces; `model.apply` and `model.extend` are its public faces.

    Args:
      given: padding, positions, a source and so on.
      dropout_key: gives training behaviour; None evaluates.
      cache: the inputs follow its tokens.
      keep: hand back the intermediates.
      remat: what a backward pass computes again, see `model.remat`.
      table: the embedding table that an encoder shares with its decoder.
    """
    params = gathered(params)
    keys = {name: None if dropout_key is None else stream(dropout_key, name) for name in ("embedding", "blocks")}
    offset: Any = 0
    positions, valid = given.get("positions"), given.get("valid")
    if cache is None:
        memory, memory_valid, encoder = _memory(params, config, given, dropout_key, keep, remat)
    else:
        tokens = inputs.shape if isinstance(config.inputs, Tokens) else inputs.shape[:-1]
        offset, memory, memory_valid, encoder = cache.used, None, cache.memory_valid, None
        cache, positions = cache.admit(jnp.ones(tokens, bool) if valid is None else valid)
    mask = _mask(config, given, positions, cache, offset)
    with jax.named_scope("embedding"):
        x, positions = embed(params.embedding, config, inputs, positions, given.get("token_types"), table)
        key_positions = positions if cache is None else cache.positions
        call = Call(
            query_positions=positions,
            key_positions=key_positions,
            mask=mask,
            bias=config.positions.bias(
                positions, key_positions, config.heads, params.buckets, config.visibility != "causal"
            ),
            memory=memory,
            memory_mask=None if memory_valid is None else Padding(memory_valid),
            valid=valid,
            offset=None if cache is None else offset,
            training=dropout_key is not None,
            weights=keep,
        )
        x, embedding_norm = normalise(params.embedding_norm, config, x, call)
        x = embedded = dropout(keys["embedding"], config.dropout, x)
    x, kept, blocks, layers = _layers(
        params.blocks, config, x, call, keys["blocks"], cache and cache.layers, keep, remat
    )
    with jax.named_scope("head"):
        final, final_norm = normalise(params.final_norm, config, x, call)
        output, head = predict(params.head, config, final, params.embedding.tokens, call)
    after = params.replace(embedding_norm=embedding_norm, blocks=blocks, final_norm=final_norm, head=head)
    return Outcome(
        output=output,
        params=after if encoder is None else after.replace(encoder=encoder.params),
        cache=None if cache is None else cache.replace(layers=layers),
        intermediates=Intermediates(embedded, kept, final, encoder and encoder.intermediates) if keep else None,  # type: ignore[arg-type]
    )


def _mask(
    config: ModelConfig, given: Given, positions: Array | None, cache: Cache | None, offset: int | Array
) -> Mask | None:
    """What self-attention may read: by the architecture, and only what is real."""
    key_positions = positions if cache is None else cache.positions
    mask = config.mask(
        prefix=given.get("prefix"), offset=offset, query_positions=positions, key_positions=key_positions
    )
    valid, further = given.get("valid") if cache is None else cache.valid, given.get("mask")
    mask = mask if valid is None else Padding(valid) & mask
    return mask if further is None else further & mask


def _memory(
    params: Transformer,
    config: ModelConfig,
    given: Given,
    dropout_key: Array | None = None,
    keep: bool = False,
    remat: str = "none",
) -> tuple[Array | None, Array | None, Outcome | None]:
    """What cross-attention reads, which of it is real, and the encoder's outcome where it has one to read."""
    memory, source = given.get("memory"), given.get("source")
    if (memory is not None or source is not None) != config.reads_memory or (source is not None and not config.encoder):
        wanted = "a source, or a memory" if config.encoder else "a memory" if config.reads_memory else "neither"
        found = [name for name in ("source", "memory") if given.get(name) is not None]
        raise ValueError(f"the config needs {wanted}, to attend to; given is {found}")
    if source is None or memory is not None:
        return memory, given.get("memory_valid"), None
    encoder = _encoded(params, config, given, dropout_key, keep, remat)
    return encoder.output, given.get("source_valid"), encoder


def _encoded(
    params: Transformer,
    config: ModelConfig,
    given: Given,
    dropout_key: Array | None = None,
    keep: bool = False,
    remat: str = "none",
) -> Outcome:
    key = None if dropout_key is None else stream(dropout_key, "encoder")
    table = params.embedding.tokens
    with jax.named_scope("encoder"):
        return run(
            params.encoder,  # type: ignore[arg-type]
            config.encoder,  # type: ignore[arg-type]
            given["source"],  # type: ignore[arg-type]
            {"valid": given.get("source_valid")},
            dropout_key=key,
            keep=keep,
            remat=remat,
            table=table,
        )


def _layers(
    layers: tuple[Block, ...] | Block,
    config: ModelConfig,
    x: Array,
    call: Call,
    key: Array | None,
    caches: Any,
    keep: bool,
    remat: str,
) -> tuple[Array, Any, Any, Any]:
    """Every block in turn: the one place that knows whether layers are unrolled or scanned.

    Returns the stream; what the blocks did, if it is to be kept; the blocks after it; and their caches.
    """
    moving = config.norm_kind.running and call.training

    def body(x: Array, layer: Any) -> tuple[Array, Any]:
        params, index, cache = layer
        own_key = None if key is None else jax.random.fold_in(key, index)
        x, did, after, cache = block(gathered(params), config, x, call, own_key, cache)
        return x, (did if keep else None, after if moving else None, cache)

    body = rematerialised(body, remat, scanned=not isinstance(layers, tuple))
    if isinstance(layers, tuple):
        ends = []
        for index, params in enumerate(layers):
            with jax.named_scope(f"block_{index}"):
                x, end = body(x, (params, index, caches and caches[index]))
            ends.append(end)
        kept, after, caches = zip(*ends, strict=True) if ends else ((), (), ())
        return x, kept, after if moving else layers, caches
    depth = len(jax.tree.leaves(layers)[0])
    x, (kept, after, caches) = jax.lax.scan(body, x, (layers, jnp.arange(depth), caches))
    return x, unstack(kept) if keep else None, after if moving else layers, caches
