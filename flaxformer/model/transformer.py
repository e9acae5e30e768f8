"""The Transformer: encoder, decoder, or both, as pure functions of parameters, config and inputs."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.component import Aux, Component
from flaxformer.config import ModelConfig
from flaxformer.model.blocks import BlockIntermediates, BlockParams
from flaxformer.model.cache import BlockState, Cache
from flaxformer.model.call import ForwardInputs, check_inputs, check_memory
from flaxformer.model.context import cache_context, last_token, self_attention_mask, stack_context
from flaxformer.model.embedding import embed
from flaxformer.model.layers import map_layers, run_layers
from flaxformer.model.layout import Layout, laid_out
from flaxformer.model.norm import normalise
from flaxformer.nn.dropout import dropout
from flaxformer.params import Parameters, declarations, declare, fold_in_name, initialise, subtree
from flaxformer.parts.cache import InputHistory
from flaxformer.pytree import Node
from flaxformer.sharding import all_gather_fsdp
from flaxformer.struct import UserError


class Transformer(Parameters):
    """All weights. `blocks` is a tuple of per-layer trees, or one tree with a leading `layers` axis."""

    embedding: Any = subtree(component="embedding")
    positions: Any = subtree(component="positions")
    embedding_norm: Any = subtree(component="embedding_norm")
    encoder: "Transformer | None" = subtree(when="encoder", config="encoder")
    blocks: tuple[BlockParams, ...] = subtree(repeat="block_configs")
    final_norm: Any = subtree(component="final_norm")
    head: Any = subtree(component="head")


class Intermediates(Node):
    """Intermediates by stage: the stream after embedding, every block's branches, the head's input, the encoder."""

    embedded: Float[Array, "*batch T D"]
    blocks: tuple[BlockIntermediates, ...]
    final: Float[Array, "*batch T D"]
    encoder: "Intermediates | None" = None


class ModelOutput(Node):
    """Result of one call of a model."""

    output: Array
    aux: Aux = Aux()
    """Losses, statistics and changed weights of its components."""
    cache: Any = None
    intermediates: Any = None


def specs(config: ModelConfig) -> Transformer:
    """Every weight's declaration under a config: shapes, axes, initialisers, decay."""
    return declare(Transformer, config)


def init(key: Array, config: ModelConfig, layout: Layout = "unrolled") -> Transformer:
    """Draw the weights. The numbers depend on key and path alone, never on the layout or on other weights."""
    return with_layout(_drawn(fold_in_name(key, "parameters"), config), layout)


def _drawn(key: Array, config: ModelConfig) -> Transformer:
    drawn = initialise(key, declarations(Transformer, config).replace(encoder=None), config.initial_std)
    return (
        drawn if config.encoder is None else drawn.replace(encoder=_drawn(fold_in_name(key, "encoder"), config.encoder))
    )


def with_layout(params: Transformer, layout: Layout) -> Transformer:
    """The same weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    encoder = None if params.encoder is None else with_layout(params.encoder, layout)
    return params.replace(blocks=laid_out(params.blocks, layout), encoder=encoder)


def encode(
    params: Transformer, config: ModelConfig, source: Array, valid: Bool[Array, "*batch S"] | None = None
) -> Float[Array, "*batch S D"]:
    """The final output of a model's encoder: the `memory` that its decoder reads."""
    return _encoded(params, config, {"source": source, "source_valid": valid}).output


def new_cache(
    params: Transformer, config: ModelConfig, batch: tuple[int, ...], capacity: int, **given: Unpack[ForwardInputs]
) -> Cache:
    """An empty cache for `capacity` tokens of each sequence of a batch; the memory's keys and values are in it already.

    The cache of a model whose mixers all have a state of constant size has no capacity: it takes any number of tokens.

    Raises:
      UserError: a model whose tokens see later ones, or a capacity above the model's max_length.
    """
    check_inputs(config, given)
    if not config.is_causal:
        why = (
            'mask_pattern is "bidirectional"'
            if config.mask_pattern == "bidirectional"
            else 'norm_kind.over is "sequence"'
        )
        raise UserError(f"{why}, so that a token depends on later ones; expected a causal model to decode with")
    if config.max_length is not None and capacity > config.max_length:
        raise UserError(
            f"the cache has a capacity of {capacity}; expected at most the model's max_length {config.max_length}"
        )
    memory, memory_valid, _ = _memory(params, config, given)
    context = stack_context(config, memory=memory, memory_valid=memory_valid).of("cross_attention")

    def state(own: ModelConfig, block: Any) -> BlockState:
        dtype = jnp.result_type(jnp.bfloat16, *jax.tree.leaves(block.attention)[:1], *jax.tree.leaves(params.embedding))
        mixer = own.attention
        found = mixer.init_state(block.attention, batch, capacity, dtype) if mixer.has_state else None
        if found is None and type(mixer).initial_carry is not Component.initial_carry:
            kind = type(mixer).__name__
            raise ValueError(
                f"{kind} carries values across layers and has no decoding state; expected init_state, step"
            )
        found = InputHistory(jnp.zeros((*batch, capacity, config.d_model), dtype)) if found is None else found
        if memory is None:
            return BlockState(found)
        return BlockState(found, own.cross.source_state(block.cross_attention, memory, memory_valid, context))

    layers = map_layers(state, params.blocks, config)
    states = jax.tree.leaves(layers, is_leaf=lambda node: isinstance(node, BlockState))
    has_capacity = any(own.attention.reads_mask for own in config.block_configs)
    has_capacity |= any(isinstance(one.attention, InputHistory) for one in states)
    return Cache(
        layers=layers,
        used=jnp.int32(0),
        count=jnp.zeros(batch, jnp.int32),
        valid=jnp.zeros((*batch, capacity), bool) if has_capacity else None,
        positions=jnp.zeros((*batch, capacity), jnp.int32) if has_capacity else None,
        memory_valid=memory_valid,
    )


def run(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    given: ForwardInputs,
    *,
    dropout_key: Array | None = None,
    cache: Cache | None = None,
    return_intermediates: bool = False,
    remat: str = "none",
    table: Array | None = None,
    last_only: bool = False,
) -> ModelOutput:
    """One call of the model, with all that it produces; `model.apply` and `model.extend` are its public faces.

    Args:
      given: padding, positions, a source and so on.
      dropout_key: gives training behaviour; None evaluates.
      cache: the inputs follow its tokens.
      return_intermediates: whether the output holds them.
      remat: what a backward pass computes again, see `model.remat`.
      table: the embedding table that an encoder shares with its decoder.
      last_only: answer for the last real token of each sequence alone, [*batch, 1, …].

    Raises:
      TypeError: an unknown argument in `given`, with the nearest name.
      UserError: a mask, where a mixer reads none.
    """
    check_inputs(config, given)
    params = all_gather_fsdp(params)
    keys = {
        name: None if dropout_key is None else fold_in_name(dropout_key, name)
        for name in ("embedding", "blocks", "head")
    }
    positions, valid = given.get("positions"), given.get("valid")
    offset: Any = None
    if cache is None:
        memory, memory_valid, encoder = _memory(params, config, given, dropout_key, return_intermediates, remat)
    else:
        tokens = inputs.shape if config.inputs.reads == "tokens" else inputs.shape[:-1]
        offset, memory, memory_valid, encoder = cache.used, None, cache.memory_valid, None
        cache, positions = cache.advance(jnp.ones(tokens, bool) if valid is None else valid)
    before = None if cache is None else cache.positions
    measured = None if positions is None else (positions, positions if before is None else before)
    if valid is not None and config.inputs.reads == "vectors":  # NaN there would reach the gradient of their map
        inputs = jnp.where(valid[..., None] | jnp.isfinite(inputs), inputs, 0)
    with jax.named_scope("embedding"):
        x, positions = embed(
            params.embedding, params.positions, config, inputs, positions, given.get("token_types"), table
        )
        if valid is not None:  # times a gradient of 0, a NaN in padding would still be one
            x = jnp.where(valid[..., None] | jnp.isfinite(x), x, 0)
        key_positions = positions if before is None else before
        context = stack_context(
            config,
            query_positions=positions,
            key_positions=key_positions,
            given_positions=measured,
            mask=self_attention_mask(config, given, cache, 0 if offset is None else offset),
            bias=config.positions.bias(
                params.positions,
                positions,
                key_positions,
                config.sizes.get("heads", 1),
                config.mask_pattern != "causal",
            ),
            scheme=config.positions,
            scheme_weights=params.positions,
            memory=memory,
            memory_valid=memory_valid,
            valid=valid,
            offset=offset,
            training=dropout_key is not None,
            return_intermediates=return_intermediates,
        )
        x, first = normalise(params.embedding_norm, config.embedding_norm, x, context)
        x = embedded = dropout(keys["embedding"], config.dropout, x)
    whole = None if cache is None else cache_context(config, context, cache)
    x, kept, aux, layers = run_layers(
        params.blocks, config, x, context, keys["blocks"], cache and cache.layers, whole, remat
    )
    with jax.named_scope("head"):
        final, last = normalise(params.final_norm, config.final_norm, config.residual.end(x), context)
        if last_only:
            final, context = last_token(final, context)
        context = context.replace(key=keys["head"])
        output, said = config.head.answer(params.head, final, _table(params), context, config.norm_kind)
    aux = aux.within("blocks").merge(first.within("embedding_norm")).merge(last.within("final_norm"))
    aux = aux.merge(said.within("head")).merge(Aux() if encoder is None else encoder.aux.within("encoder"))
    intermediates = None
    if return_intermediates:
        intermediates = Intermediates(embedded, kept, final, encoder and encoder.intermediates)  # type: ignore[arg-type]
    return ModelOutput(
        output=output,
        aux=aux,
        cache=None if cache is None else cache.replace(layers=layers),
        intermediates=intermediates,
    )


def _table(params: Transformer) -> Array | None:
    """The embedding table, where the inputs have one."""
    return getattr(params.embedding, "tokens", None)


def _memory(
    params: Transformer,
    config: ModelConfig,
    given: ForwardInputs,
    dropout_key: Array | None = None,
    return_intermediates: bool = False,
    remat: str = "none",
) -> tuple[Array | None, Array | None, ModelOutput | None]:
    """Return the memory of cross-attention, its real tokens, and the encoder's outcome where the encoder runs."""
    memory, source = given.get("memory"), given.get("source")
    check_memory(config, given)
    if source is None or memory is not None:
        return memory, given.get("memory_valid"), None
    encoder = _encoded(params, config, given, dropout_key, return_intermediates, remat)
    return encoder.output, given.get("source_valid"), encoder


def _encoded(
    params: Transformer,
    config: ModelConfig,
    given: ForwardInputs,
    dropout_key: Array | None = None,
    return_intermediates: bool = False,
    remat: str = "none",
) -> ModelOutput:
    key = None if dropout_key is None else fold_in_name(dropout_key, "encoder")
    table = _table(params)
    with jax.named_scope("encoder"):
        return run(
            params.encoder,  # type: ignore[arg-type]
            config.reading_encoder,
            given["source"],  # type: ignore[arg-type]
            {"valid": given.get("source_valid")},
            dropout_key=key,
            return_intermediates=return_intermediates,
            remat=remat,
            table=table,
        )
