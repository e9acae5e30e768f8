"""Transformer encoder, decoder, or both: forward pass and cache."""

import dataclasses
import functools
from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer.components.component import Aux, Context
from flaxformer.components.heads import OutputProjection
from flaxformer.config import ModelConfig
from flaxformer.core.params import fold_in_name
from flaxformer.core.points import Edits
from flaxformer.devices.sharding import all_gather_fsdp
from flaxformer.model.blocks import BlockParams
from flaxformer.model.cache import BlockState, Cache, grows, is_block_state
from flaxformer.model.call import ForwardInputs, check_inputs, check_memory, positions_of_call
from flaxformer.model.context import (
    append_inputs,
    cache_context,
    last_token,
    position_bias,
    self_attention_mask,
    stack_context,
)
from flaxformer.model.embedding import embed
from flaxformer.model.layers import map_layers, run_layers
from flaxformer.model.norm import normalise
from flaxformer.model.output import Intermediates, ModelOutput
from flaxformer.model.states import check_decodable, empty_states
from flaxformer.model.weights import Transformer
from flaxformer.nn.dropout import dropout


def encode(
    params: Transformer, config: ModelConfig, source: Array, valid: Bool[Array, "*batch S"] | None = None
) -> Float[Array, "*batch S D"]:
    """Return the output of a model's encoder, the `memory` of its decoder."""
    return _run_encoder(params, config, {"source": source, "source_valid": valid}, {}).output


def new_cache(
    params: Transformer,
    config: ModelConfig,
    batch: tuple[int, ...],
    capacity: int,
    *,
    edits: Edits | None = None,
    **arguments: Unpack[ForwardInputs],
) -> Cache:
    """Return an empty cache for `capacity` tokens per sequence; it has the keys and values of cross-attention.

    If all mixers of a model have a state of constant size, its cache has no capacity and no limit.

    Args:
      batch: leading axes of the sequences.
      edits: functions to apply in the encoder, and to keys and values of cross-attention.
      arguments: source or memory of the model, and other arguments of `apply`.

    Raises:
      UserError: a model that is not causal, or a capacity above its max_length.
    """
    check_inputs(config, arguments)
    check_decodable(config, capacity)
    memory, memory_valid, _ = _memory(params, config, arguments, {"edits": edits})
    context = stack_context(config, memory=memory, memory_valid=memory_valid, edits=edits)
    context = context.for_branch("cross_attention")
    states = empty_states(params, config, batch, capacity)
    larger = jax.eval_shape(lambda: empty_states(params, config, batch, capacity + 1))
    has_capacity = grows(states, larger) or any(mixer.reads_mask for mixer in config.mixers.values())

    def source_state(
        block_config: ModelConfig, block: BlockParams, numbers: tuple[int, ...], layer: int | Int[Array, ""]
    ) -> BlockState:
        layer_edits = None if context.edits is None else dataclasses.replace(context.edits, layers=numbers)
        own_context = context.replace(layer=layer, edits=layer_edits)
        return BlockState(
            cross_attention=block_config.cross.source_state(block.cross_attention, memory, memory_valid, own_context)
        )

    layers = states.layers
    if memory is not None:
        layers = jax.tree.map(
            lambda state, with_memory: state.replace(cross_attention=with_memory.cross_attention),
            layers,
            map_layers(source_state, params.blocks, config),
            is_leaf=is_block_state,
        )
    has_tokens = states.has_history and config.inputs.reads == "tokens"
    return Cache(
        layers=layers,
        shared=states.shared,
        used=jnp.int32(0),
        count=jnp.zeros(batch, jnp.int32),
        valid=jnp.zeros((*batch, capacity), bool) if has_capacity else None,
        positions=jnp.zeros((*batch, capacity), jnp.int32) if has_capacity else None,
        memory_valid=memory_valid,
        tokens=jnp.zeros((*batch, capacity), jnp.int32) if has_tokens else None,
        prefix=jnp.zeros(batch, jnp.int32) if config.mask_pattern == "prefix" else None,
    )


class PassSettings(TypedDict, total=False):
    """Settings of a forward pass, which its encoder has too."""

    dropout_key: Array | None
    """Random key of training, of the whole batch; None evaluates."""
    rows: Int[Array, " B"] | None
    """Index of each sequence in the batch, where these are a part of it; None for a whole batch."""
    return_intermediates: bool
    """True to return the intermediates."""
    remat: str
    """Activations that the backward pass stores; see `model.remat`. By default, all."""
    edits: Edits | None
    """Functions to apply at points before the output; the caller checks that each has matched a point."""


def run(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    arguments: ForwardInputs,
    *,
    cache: Cache | None = None,
    table: Array | None = None,
    last_only: bool = False,
    **settings: Unpack[PassSettings],
) -> ModelOutput:
    """Run a forward pass; `model.apply` and `model.extend` are the public functions for it.

    Args:
      arguments: padding, positions, a source and so on; see `ForwardInputs`.
      cache: decoding state; the inputs follow its tokens.
      table: embedding table of the decoder, for an encoder that shares it.
      last_only: return the output only for the last token of each sequence that is not padding, [*batch, 1, …].
      settings: see `PassSettings`.

    Raises:
      TypeError: an unknown argument.
      UserError: a mask that a mixer would ignore.
    """
    check_inputs(config, arguments)
    params, key, rows = all_gather_fsdp(params), settings.get("dropout_key"), settings.get("rows")
    keys = {name: None if key is None else fold_in_name(key, name) for name in ("embedding", "blocks", "head")}
    keeps, offset = settings.get("return_intermediates", False), None if cache is None else cache.used
    if cache is None:
        memory, memory_valid, encoder = _memory(params, config, arguments, settings)
    else:
        memory, memory_valid, encoder = None, cache.memory_valid, None
        cache, positions = append_inputs(cache, config, inputs, arguments)
        arguments = {**arguments, "positions": positions}
    with jax.named_scope("embedding"):
        x, context = _embed_inputs(params, config, inputs, arguments, table, cache, offset, memory, memory_valid)
        context = context.replace(training=key is not None, rows=rows, return_intermediates=keeps)
        # The points of the stack and of its blocks are edited; a norm or a head has none.
        edited = context.replace(edits=settings.get("edits"))
        x, first = normalise(params.embedding_norm, config.embedding_norm, x, context)
        x = embedded = edited.edit("embedded", dropout(keys["embedding"], config.dropout, x, rows))
    earlier, whole = (None, None) if cache is None else (cache.states, cache_context(config, context, cache))
    remat = settings.get("remat", "none")
    x, blocks, aux, states = run_layers(params.blocks, config, x, edited, keys["blocks"], earlier, whole, remat)
    final, output, projection, last = _output(params, config, x, edited.with_key(keys["head"]), last_only)
    encoder_intermediates = None if encoder is None else encoder.intermediates
    intermediates = Intermediates(embedded, tuple(filter(None, blocks or ())), final, encoder_intermediates)
    parts = {"blocks": aux, "embedding_norm": first, "encoder": Aux() if encoder is None else encoder.aux}
    return ModelOutput(
        output=output,
        aux=functools.reduce(Aux.merge, (part.within(name) for name, part in parts.items())).merge(last),
        cache=None if cache is None else cache.replace(layers=states.layers, shared=states.shared),
        intermediates=intermediates if keeps else None,
        projection=projection,
    )


def _embed_inputs(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    arguments: ForwardInputs,
    table: Array | None,
    cache: Cache | None,
    offset: Int[Array, ""] | None,
    memory: Array | None,
    memory_valid: Array | None,
) -> tuple[Float[Array, "*batch T D"], Context]:
    """The embedded inputs, and the context that every layer gets.

    With a cache, which has been advanced by the inputs, they follow `offset` earlier tokens, whose positions it holds.
    """
    given_positions, valid = positions_of_call(arguments), arguments.get("valid")
    earlier = None if cache is None else cache.positions
    if valid is not None and config.inputs.reads == "vectors":  # NaN there would reach the gradient of their map
        inputs = jnp.where(valid[..., None] | jnp.isfinite(inputs), inputs, 0)
    x, positions = embed(
        params.embedding, params.positions, config, inputs, given_positions, arguments.get("token_types"), table
    )
    if valid is not None:  # times a gradient of 0, a NaN in padding would still be one
        x = jnp.where(valid[..., None] | jnp.isfinite(x), x, 0)
    tokens = inputs if config.inputs.reads == "tokens" else None
    if valid is not None and tokens is not None:
        tokens = jnp.where(valid, tokens, 0)
    key_positions = positions if earlier is None else earlier
    context = stack_context(
        config,
        query_positions=positions,
        key_positions=key_positions,
        given_positions=None if given_positions is None else (given_positions, key_positions),
        mask=self_attention_mask(config, arguments, cache, 0 if offset is None else offset),
        bias=position_bias(config.positions, params.positions, config, positions, key_positions),
        scheme=config.positions,
        scheme_weights=params.positions,
        memory=memory,
        memory_valid=memory_valid,
        valid=valid,
        tokens=tokens,
        offset=offset,
    )
    return x, context


def _output(
    params: Transformer, config: ModelConfig, x: PyTree, context: Context, last_only: bool
) -> tuple[Float[Array, "*batch T D"], Float[Array, "..."], OutputProjection | None, Aux]:
    """Return the final vectors, the output of the head and its last step, and the `Aux` of the final norm and the head.

    Args:
      x: the residual stream after the last block.
      context: with the random key of the head.
    """
    plain = context.replace(edits=None)  # a norm or a head has no points
    with jax.named_scope("head"):
        final, norm = normalise(params.final_norm, config.final_norm, config.residual.end(x), plain.with_key(None))
        final = context.edit("final", final)
        final, plain = last_token(final, plain) if last_only else (final, plain)
        table = _table(params)
        output, projection, head = config.head.apply_with_aux(params.head, final, table, plain, config.norm_kind)
    return final, output, projection, norm.within("final_norm").merge(head.within("head"))


def _table(params: Transformer) -> Array | None:
    """Return the embedding table, if there is one."""
    return getattr(params.embedding, "tokens", None)


def _memory(
    params: Transformer, config: ModelConfig, arguments: ForwardInputs, settings: PassSettings
) -> tuple[Array | None, Array | None, ModelOutput | None]:
    """Return the memory of cross-attention, its `valid`, and the output of the encoder if it runs."""
    memory, source = arguments.get("memory"), arguments.get("source")
    check_memory(config, arguments)
    if source is None or memory is not None:
        return memory, arguments.get("memory_valid"), None
    encoder = _run_encoder(params, config, arguments, settings)
    return encoder.output, arguments.get("source_valid"), encoder


def _run_encoder(
    params: Transformer, config: ModelConfig, arguments: ForwardInputs, settings: PassSettings
) -> ModelOutput:
    """Run the encoder on the source."""
    encoder_inputs, key, edits = arguments.get("source"), settings.get("dropout_key"), settings.get("edits")
    if params.encoder is None or config.resolved_encoder is None or encoder_inputs is None:
        raise ValueError("the config has no encoder or no source is given; expected both")
    encoder_settings: PassSettings = {
        **settings,
        "dropout_key": None if key is None else fold_in_name(key, "encoder"),
        "edits": None if edits is None else dataclasses.replace(edits, stack="encoder/"),
    }
    inputs: ForwardInputs = {"valid": arguments.get("source_valid"), "positions": arguments.get("source_positions")}
    with jax.named_scope("encoder"):
        return run(
            params.encoder, config.resolved_encoder, encoder_inputs, inputs, table=_table(params), **encoder_settings
        )
