"""Contradictions between the fields of a `ModelConfig`."""

from collections.abc import Iterator
from typing import Any

from flaxformer.components.attention import Attention
from flaxformer.components.branch import TokenMixer
from flaxformer.components.heads import NoHead
from flaxformer.components.inputs import Tokens
from flaxformer.components.parametrizations import ByRole
from flaxformer.components.positions import Positions, Rotary
from flaxformer.components.residuals import DeepNorm
from flaxformer.system.errors import UserError


def problems(config: Any) -> Iterator[str]:
    """Yield one error message per contradiction in a `ModelConfig`."""
    yield from _attention_problems(config, "attention", config.attention)
    for name in ("attention", "feed_forward"):
        branch = getattr(config, name)
        if config.mask_pattern != "causal" and branch is not None and branch.reads_others and not branch.reads_mask:
            kind = f"{name} {type(branch).__name__}"
            yield f'mask_pattern is "{config.mask_pattern}"; expected "causal" with {kind}, which reads no mask'
    if config.reads_memory:
        if not isinstance(config.cross, Attention):
            kind = type(config.attention).__name__
            yield (
                f"cross_attention is None with attention {kind}, which reads no memory; expected "
                "cross_attention=Attention(...) beside it"
            )
        else:
            yield from _attention_problems(config, "cross_attention", config.cross)
            yield from _cross_problems(config, config.cross)
    scheme = config.attention_positions
    if scheme is not None and (scheme.width or type(scheme).encode is not Positions.encode):
        yield (
            f"positions of attention are {type(scheme).__name__}, which changes the embeddings; expected a scheme that "
            "acts within attention, such as Rotary() or NoPositions()"
        )
    if config.head.tied and not (config.inputs.reads == "tokens" and not config.positions.width):
        yield "head.tied is True; expected inputs Tokens with embeddings as wide as the model"
    if config.head.tied and isinstance(config.parametrization, ByRole):
        table, scale = config.inputs, config.head.scale_exponent
        if isinstance(table, Tokens) and (table.std is None or scale is None):
            kind = type(config.parametrization).__name__
            yield (
                f"head.tied is True with parametrization {kind}; expected tied=False, or Tokens(std=1.0) and "
                "LanguageModel(tied=True, scale_exponent=1.0): the shared table keeps the role of an embedding"
            )
    if isinstance(config.inputs, Tokens) and config.inputs.shared and not isinstance(config.head, NoHead):
        yield "inputs.shared is True; expected it only in an encoder, with head NoHead()"
    if config.encoder is not None:
        yield from _encoder_problems(config, config.encoder)
    yield from _pattern_problems(config)


def unused_cross_attention(config: Any) -> str | None:
    """Return the message for a cross-attention that nothing is given to; None if there is no such mistake.

    A config may have it for a time, since `with_encoder` adds the encoder to a decoder that is whole.
    """
    if config.cross_attention is None or config.reads_memory:
        return None
    return "cross_attention is given without an encoder; expected .with_encoder(...), d_memory, or None"


def _pattern_problems(config: Any) -> Iterator[str]:
    distinct, period = config.distinct_blocks, len(config.pattern)
    for number in range(period):
        try:
            config.block_config(number)
        except UserError as error:
            yield f"pattern.{number}: {error}"
    if distinct is not None and (distinct > config.layers or config.layers % distinct):
        yield f"distinct_blocks is {distinct}; expected a divisor of layers {config.layers}"
    if distinct is not None and period and distinct % period:
        yield f"distinct_blocks is {distinct} with a pattern of {period} blocks; expected a multiple of {period}"
    if period and config.layers < period:
        yield f"pattern has {period} blocks; expected at most layers {config.layers}"
    if any(
        type(block.changes().get("residual", config.residual)) is not type(config.residual) for block in config.pattern
    ):
        kind = type(config.residual).__name__
        yield f"pattern has a residual rule other than the model's {kind}; expected the same class in all blocks"
    if config.mixes_batch and config.blocks < config.layers:
        kind = type(config.batch_mixers[0]).__name__
        yield f"distinct_blocks is {distinct} with {kind}, which has statistics per layer; expected None"


def _attention_problems(config: Any, name: str, attention: TokenMixer) -> Iterator[str]:
    """Yield the contradictions between an attention and the model."""
    if not isinstance(attention, Attention):
        return
    d_model = config.d_model
    if attention.d_head is None and d_model % attention.heads:
        yield f"{name}.heads is {attention.heads}; expected a divisor of d_model {d_model}, or d_head to be given"
    if attention.value_form == "full" and attention.d_value not in (None, d_model):
        yield f'{name}.d_value is {attention.d_value} with value_form "full"; expected None or d_model {d_model}'
    width = attention.axis_sizes({"d_model": d_model})["d_head"]
    if isinstance(config.attention_scheme, Rotary) and name == "attention":
        rotated = config.attention_scheme.rotated_width
        if rotated is None and width % 2:
            yield f"d_head is {width}; expected an even number, since Rotary rotates pairs"
        if rotated is not None and rotated > width:
            yield f"positions.rotated_width is {rotated}; expected at most d_head {width}"


def _cross_problems(config: Any, attention: Attention) -> Iterator[str]:
    width = config.sizes["d_memory"]
    if attention.share_query_key and width != config.d_model:
        where = "encoder.d_model" if config.encoder else "d_memory"
        yield f"share_query_key is True with {where} {width}; expected d_model {config.d_model}"
    if attention.frozen_pattern is not None:
        yield f"frozen_pattern is {attention.frozen_pattern} with cross-attention; expected None"


def _encoder_problems(config: Any, encoder: Any) -> Iterator[str]:
    if not isinstance(encoder.head, NoHead):
        yield f"encoder.head is {encoder.head}; expected NoHead()"
    if encoder.reads_memory:
        yield "encoder has an encoder or d_memory; expected neither"
    if config.d_memory not in (None, encoder.d_model):
        yield f"d_memory is {config.d_memory}; expected None or the encoder's d_model {encoder.d_model}"
    shared = isinstance(encoder.inputs, Tokens) and encoder.inputs.shared
    table = encoder.vocabulary, encoder.sizes["d_embedding"]
    decoder_table = config.vocabulary, config.sizes["d_embedding"]
    if shared and (not isinstance(config.inputs, Tokens) or table != decoder_table):
        yield f"encoder.inputs.shared is True with a table of {table}; expected the decoder's table of {decoder_table}"
    if isinstance(encoder.residual, DeepNorm) and encoder.residual.decoder_layers != config.layers:
        decoder_layers = encoder.residual.decoder_layers
        yield f"encoder.residual.decoder_layers is {decoder_layers}; expected the decoder's layers, {config.layers}"
