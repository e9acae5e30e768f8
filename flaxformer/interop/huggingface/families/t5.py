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
from flaxformer.interop.huggingface.tables import within
from flaxformer.system.errors import UserError

STACK = """
block.*.layer.0.SelfAttention.q             blocks/*/attention/query
block.*.layer.0.SelfAttention.k             blocks/*/attention/key
block.*.layer.0.SelfAttention.v             blocks/*/attention/value
block.*.layer.0.SelfAttention.o             blocks/*/attention/out
block.*.layer.0.layer_norm                  blocks/*/attention_connection/pre        norm
block.*.layer.LAST.DenseReluDense.wo        blocks/*/feed_forward/down
block.*.layer.LAST.layer_norm               blocks/*/feed_forward_connection/pre     norm
block.0.layer.0.SelfAttention.relative_attention_bias  positions/table               table
final_layer_norm                            final_norm                               norm
"""
CROSS = """
block.*.layer.1.EncDecAttention.q           blocks/*/cross_attention/query
block.*.layer.1.EncDecAttention.k           blocks/*/cross_attention/key
block.*.layer.1.EncDecAttention.v           blocks/*/cross_attention/value
block.*.layer.1.EncDecAttention.o           blocks/*/cross_attention/out
block.*.layer.1.layer_norm                  blocks/*/cross_attention_connection/pre  norm
"""
DENSE = """
block.*.layer.LAST.DenseReluDense.wi        blocks/*/feed_forward/up
"""
GATED = """
block.*.layer.LAST.DenseReluDense.wi_0      blocks/*/feed_forward/gate
block.*.layer.LAST.DenseReluDense.wi_1      blocks/*/feed_forward/up
"""
ENDS = """
shared                                      embedding/tokens                         table
lm_head                                     head                                     head
"""


def tensors(config: ModelConfig) -> str:
    """Return the table of a model; the feed-forward layer is the last part of a layer."""
    layer = STACK + (GATED if isinstance(config.feed_forward, Gated) else DENSE)
    encoder, decoder = layer.replace("LAST", "1"), layer.replace("LAST", "2") + CROSS
    return within("encoder.", "encoder/", encoder) + within("decoder.", "", decoder) + ENDS


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return attributes with scale_decoder_outputs, which before transformers 5 was implied by a tied head.

    transformers 5 always writes tie_word_embeddings as true, so that the tensors decide whether the head is tied.
    """
    is_tied = attributes.get("tie_word_embeddings") is not False
    if "scale_decoder_outputs" in attributes:
        head = state.get("lm_head.weight")
        is_tied = is_tied and (head is None or np.array_equal(head, state.get("shared.weight", head)))
    check_derived(attributes)
    return {"scale_decoder_outputs": is_tied, **attributes, "tie_word_embeddings": is_tied}


def check_derived(attributes: Attributes, default: str = "relu") -> None:
    """Check attributes that transformers derives from feed_forward_proj, if the file has them."""
    form = attributes.get("feed_forward_proj") or default
    derived = {
        "is_gated_act": form.startswith("gated-"),
        "dense_act_fn": "gelu_new" if form == "gated-gelu" else form.split("-")[-1],
    }
    for name, value in derived.items():
        if attributes.get(name, value) != value:
            raise UserError(
                f"config.json has '{name}' {attributes[name]!r}; expected {value!r}, as feed_forward_proj is {form!r}"
            )


def _feed_forward_proj(default: str) -> Attribute:
    """Return the conversion of the class and activation of the feed-forward layer; its width is another attribute."""
    # "gelu" is the tanh approximation in the gated layer of version 1.1, and exact in the dense layer.
    gated = ACTIVATIONS | {"gelu": "gelu_tanh"}
    forms: dict[str, FeedForward] = {there: Dense(activation=here, bias=False) for there, here in ACTIVATIONS.items()}
    forms |= {f"gated-{there}": Gated(activation=here, bias=False) for there, here in gated.items()}
    stacks = ("feed_forward", "encoder.feed_forward")
    values: dict[str, Fields] = {name: dict.fromkeys(stacks, form) for name, form in forms.items()}
    conversion = choice("feed_forward_proj", values, default)
    without_width = dict.fromkeys((f"{path}.d_ff" for path in stacks), None)
    return conversion._replace(write=lambda config: conversion.write(replace_at(config, without_width)))


def attributes(form: str) -> tuple[Attribute, ...]:
    """Return the attributes that T5 and mT5 share.

    form: feed_forward_proj of a file without it.
    """
    return (
        number("vocab_size", "vocabulary", "encoder.vocabulary"),
        number("d_model", "d_model", "encoder.d_model"),
        number("d_kv", "attention.d_head", "encoder.attention.d_head", default=64),
        number("d_ff", "feed_forward.d_ff", "encoder.feed_forward.d_ff"),
        number("num_heads", "attention.heads", "encoder.attention.heads"),
        number("num_layers", "encoder.layers"),
        number("num_decoder_layers", "layers", default=lambda attributes: attributes["num_layers"]),
        _feed_forward_proj(form),
        number("relative_attention_num_buckets", "positions.buckets", "encoder.positions.buckets", default=32),
        number(
            "relative_attention_max_distance", "positions.max_distance", "encoder.positions.max_distance", default=128
        ),
        number("layer_norm_epsilon", "norm_kind.epsilon", "encoder.norm_kind.epsilon", default=1e-6),
        choice("tie_word_embeddings", {True: {"head.tied": True}, False: {"head.tied": False}}),
        rate("dropout_rate", "dropout", "encoder.dropout", default=0.1),
    )


GATED_GELU = "gated-gelu"
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
FAMILY = Family(
    name="t5",
    architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"),
    base=BASE.with_encoder(inputs=Tokens(shared=True)),
    attributes=(*attributes("relu"), choice("scale_decoder_outputs", SCALES)),
    defaults={"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    tensors=tensors,
    fixed={"is_encoder_decoder": True},
    ignored={"read by no model": "n_positions", "derived, and checked": "is_gated_act dense_act_fn"},
    normalize=_normalize,
    aliases=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
    dropped=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
