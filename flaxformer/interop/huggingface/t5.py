"""T5 (Raffel et al. 2020) and its version 1.1, as in T5ForConditionalGeneration."""

from collections.abc import Mapping

import numpy as np

from flaxformer.components import (
    PRE,
    Attention,
    Dense,
    FeedForward,
    Gated,
    LanguageModel,
    RelativeBuckets,
    RMSNorm,
    Tokens,
)
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import ACTIVATIONS, Attribute, Attributes, Fields, choice, number, rate
from flaxformer.interop.huggingface.family import Family
from flaxformer.interop.tensors import MATRIX, TABLE, VECTOR, TensorRow, layers, within
from flaxformer.interop.widths import encoder_of
from flaxformer.system.errors import UserError

SELF_ATTENTION = tuple(
    TensorRow(f"{there}.weight", (here,), MATRIX)
    for there, here in {"q": "query", "k": "key", "v": "value", "o": "out"}.items()
)


def _branch(number: int, module: str, name: str, rows: tuple[TensorRow, ...]) -> tuple[TensorRow, ...]:
    """Return the rows of a branch and of the norm before it."""
    gain = TensorRow(f"layer.{number}.layer_norm.weight", (f"{name}_connection/pre/gain",), VECTOR)
    return (*within(f"layer.{number}.{module}.", f"{name}/", rows), gain)


def _feed_forward(config: ModelConfig) -> tuple[TensorRow, ...]:
    down = TensorRow("wo.weight", ("down",), MATRIX)
    if isinstance(config.feed_forward, Gated):
        return TensorRow("wi_0.weight", ("gate",), MATRIX), TensorRow("wi_1.weight", ("up",), MATRIX), down
    return TensorRow("wi.weight", ("up",), MATRIX), down


def _stack(config: ModelConfig) -> tuple[TensorRow, ...]:
    attention = _branch(0, "SelfAttention", "attention", SELF_ATTENTION)
    cross = _branch(1, "EncDecAttention", "cross_attention", SELF_ATTENTION) if config.reads_memory else ()
    last = 2 if config.reads_memory else 1
    layer = attention + cross + _branch(last, "DenseReluDense", "feed_forward", _feed_forward(config))
    return (
        TensorRow("block.0.layer.0.SelfAttention.relative_attention_bias.weight", ("positions/table",), TABLE),
        *layers("block", "blocks", layer, config.layers),
        TensorRow("final_layer_norm.weight", ("final_norm/gain",), VECTOR),
    )


def _rows(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("shared.weight", ("embedding/tokens",), TABLE),
        *within("encoder.", "encoder/", _stack(encoder_of(config))),
        *within("decoder.", "", _stack(config)),
        TensorRow("lm_head.weight", ("head/matrix",), MATRIX),
    )


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return attributes with scale_decoder_outputs, which before transformers 5 was implied by a tied head.

    transformers 5 always writes tie_word_embeddings as true, so that the tensors decide whether the head is tied.
    """
    is_tied = attributes.get("tie_word_embeddings") is not False
    if "scale_decoder_outputs" in attributes:
        head = state.get("lm_head.weight")
        is_tied = is_tied and (head is None or np.array_equal(head, state.get("shared.weight", head)))
    _check_derived(attributes)
    return {"scale_decoder_outputs": is_tied, **attributes, "tie_word_embeddings": is_tied}


def _check_derived(attributes: Attributes) -> None:
    """Check attributes that transformers derives from feed_forward_proj, if the file has them."""
    form = attributes.get("feed_forward_proj") or "relu"
    derived = {
        "is_gated_act": form.startswith("gated-"),
        "dense_act_fn": "gelu_new" if form == "gated-gelu" else form.split("-")[-1],
    }
    for name, value in derived.items():
        if attributes.get(name, value) != value:
            raise UserError(
                f"config.json has '{name}' {attributes[name]!r}; expected {value!r}, as feed_forward_proj is {form!r}"
            )


def _feed_forward_proj() -> Attribute:
    """Return the conversion of the class and activation of the feed-forward layer; its width is another attribute."""
    # "gelu" is the tanh approximation in the gated layer of version 1.1, and exact in the dense layer.
    gated = ACTIVATIONS | {"gelu": "gelu_tanh"}
    forms: dict[str, FeedForward] = {there: Dense(activation=here, bias=False) for there, here in ACTIVATIONS.items()}
    forms |= {f"gated-{there}": Gated(activation=here, bias=False) for there, here in gated.items()}
    stacks = ("feed_forward", "encoder.feed_forward")
    values: dict[str, Fields] = {name: dict.fromkeys(stacks, form) for name, form in forms.items()}
    conversion = choice("feed_forward_proj", values, "relu")
    without_width = dict.fromkeys((f"{path}.d_ff" for path in stacks), None)
    return conversion._replace(write=lambda config: conversion.write(replace_at(config, without_width)))


BASE = ModelConfig(
    inputs=Tokens(std=1.0),
    norm=PRE,
    norm_kind=RMSNorm(),
    positions=RelativeBuckets(),
    head=LanguageModel(tied=True, scale_exponent=0.5),
    mask_pattern="causal",
    attention=Attention(scale_exponent=0.0, bias=False, out_bias=False),
    feed_forward=Dense(bias=False),
)
SCALES: dict[bool, Fields] = {True: {"head.scale_exponent": 0.5}, False: {"head.scale_exponent": None}}
T5 = Family(
    name="t5",
    architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"),
    base=BASE.with_encoder(inputs=Tokens(shared=True)),
    attributes=(
        number("vocab_size", "vocabulary", "encoder.vocabulary"),
        number("d_model", "d_model", "encoder.d_model"),
        number("d_kv", "attention.d_head", "encoder.attention.d_head", default=64),
        number("d_ff", "feed_forward.d_ff", "encoder.feed_forward.d_ff"),
        number("num_heads", "attention.heads", "encoder.attention.heads"),
        number("num_layers", "encoder.layers"),
        number("num_decoder_layers", "layers", default=lambda attributes: attributes["num_layers"]),
        _feed_forward_proj(),
        number("relative_attention_num_buckets", "positions.buckets", "encoder.positions.buckets", default=32),
        number(
            "relative_attention_max_distance", "positions.max_distance", "encoder.positions.max_distance", default=128
        ),
        number("layer_norm_epsilon", "norm_kind.epsilon", "encoder.norm_kind.epsilon", default=1e-6),
        choice("tie_word_embeddings", {True: {"head.tied": True}, False: {"head.tied": False}}),
        choice("scale_decoder_outputs", SCALES),
        rate("dropout_rate", "dropout", "encoder.dropout", default=0.1),
    ),
    defaults={"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    rows=_rows,
    fixed={"is_encoder_decoder": True},
    ignored={"read by no model": "n_positions", "derived, and checked": "is_gated_act dense_act_fn"},
    normalize=_normalize,
    aliases=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
    dropped=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
