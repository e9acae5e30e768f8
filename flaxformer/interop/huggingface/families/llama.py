"""Llama (Touvron et al. 2023; Grattafiori et al. 2024), Mistral and SmolLM3; and what all decoders like them share."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from flaxformer.components import PRE, Gated, LanguageModel, RMSNorm, Rotary, Tokens
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import (
    Attribute,
    Attributes,
    Group,
    activation,
    flag,
    number,
    unused_attribute,
)
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, rotated_layers
from flaxformer.interop.huggingface.tables import Kind

ATTENTION = """
model.embed_tokens                             embedding/tokens                      table
model.layers.*.self_attn.q_proj                blocks/*/attention/query
model.layers.*.self_attn.k_proj                blocks/*/attention/key
model.layers.*.self_attn.v_proj                blocks/*/attention/value
model.layers.*.self_attn.o_proj                blocks/*/attention/out
model.norm                                     final_norm                            norm
lm_head                                        head                                  head
"""
BODY = (
    ATTENTION
    + """
model.layers.*.mlp.gate_proj                   blocks/*/feed_forward/gate
model.layers.*.mlp.up_proj                     blocks/*/feed_forward/up
model.layers.*.mlp.down_proj                   blocks/*/feed_forward/down
"""
)
PRE_NORMS = """
model.layers.*.input_layernorm                 blocks/*/attention_connection/pre     norm
model.layers.*.post_attention_layernorm        blocks/*/feed_forward_connection/pre  norm
"""
QUERY_KEY_NORMS = """
model.layers.*.self_attn.q_norm                blocks/*/attention/query_norm         norm
model.layers.*.self_attn.k_norm                blocks/*/attention/key_norm           norm
"""
BASE = ModelConfig(
    inputs=Tokens(std=0.02),
    norm=PRE,
    norm_kind=RMSNorm(),
    positions=Rotary(),
    head=LanguageModel(),
    mask_pattern="causal",
    feed_forward=Gated(bias=False),
)
BASE = BASE.replace(attention=BASE.attention.replace(bias=False, out_bias=False))
BIAS = flag("attention_bias", "attention.bias", "attention.out_bias", default=False)
MLP_BIAS = flag("mlp_bias", "feed_forward.bias", default=False)
ROTATED = ("no_rope_layers", "no_rope_layer_interval")
"""Attributes that say which layers of SmolLM3 have rotary positions."""


def like_llama(
    name: str,
    classes: str,
    *,
    base: ModelConfig = BASE,
    tensors: str = BODY + PRE_NORMS,
    attributes: tuple[Attribute, ...] = (),
    layer_kinds: LayerKinds = LayerKinds(),  # noqa: B008 (immutable)
    groups: tuple[Group, ...] = (),
    epsilon: float = 1e-6,
    epsilons: tuple[str, ...] = ("norm_kind.epsilon",),
    key_value_heads: int | None = None,
    d_head: int | None = None,
    activated: tuple[str, str] | None = ("hidden_act", "silu"),
    fixed: Mapping[str, object] = MappingProxyType({}),
    ignored: str = "",
    kinds: Mapping[str, Kind] = MappingProxyType({}),
    normalize: Callable[[Attributes, Mapping[str, np.ndarray]], Attributes] = lambda attributes, state: attributes,
) -> Family:
    """Return a family of decoders with the names of Llama's attributes.

    Args:
      classes: beginning of the names of its classes.
      base, tensors, attributes, groups, fixed, kinds, normalize: those of the `Family`; the attributes beside Llama's.
      epsilon, key_value_heads, d_head: numbers of a file without them; None for as many as heads, and for
        hidden_size / num_attention_heads.
      epsilons: fields that are equal to the ε of the norms.
      activated: attribute of the activation, and its value in a file without it; None if it is not read.
      ignored: attributes that do not change the model's function, beside Llama's.
    """
    return Family(
        name=name,
        architectures=(f"{classes}ForCausalLM",),
        heads={f"{classes}Model": final_vectors, f"{classes}ForSequenceClassification": classifier("last", bias=False)},
        classifier="score",
        base=base,
        attributes=(
            number("vocab_size", "vocabulary"),
            number("hidden_size", "d_model"),
            number("num_hidden_layers", "layers"),
            number("num_attention_heads", "attention.heads"),
            _width("num_key_value_heads", "attention.key_value_heads", key_value_heads, _heads),
            _width("head_dim", "attention.d_head", d_head, _share_of_heads),
            *([activation(activated[0], "feed_forward.activation", default=activated[1])] if activated else []),
            number("intermediate_size", "feed_forward.d_ff"),
            number("rms_norm_eps", *epsilons, default=epsilon),
            flag("tie_word_embeddings", "head.tied", default=base.head.tied),
            unused_attribute("attention_dropout"),
            *attributes,
        ),
        groups=(*groups, layer_kinds),  # which copies the attention
        tensors=tensors,
        kinds=kinds,
        normalize=normalize,
        fixed=fixed,
        ignored={"a limit that the function does not have": f"max_position_embeddings {ignored}"},
        prefix="model.",
        outer=("lm_head.", "score."),
        aliases={"lm_head.weight": "model.embed_tokens.weight"},
        dropped=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    )


def _width(name: str, path: str, missing: int | None, null: Callable[[Attributes], int]) -> Attribute:
    """Return the conversion of a number that is computed from others if it is null, or missing without a default."""
    return number(
        name, path, default=lambda attributes: missing if missing and name not in attributes else null(attributes)
    )


def _heads(attributes: Attributes) -> int:
    count: int = attributes["num_attention_heads"]
    return count


def _share_of_heads(attributes: Attributes) -> int:
    width: int = attributes["hidden_size"] // attributes["num_attention_heads"]
    return width


def _smollm3_types(attributes: Attributes, layers: int) -> list[str]:
    has_window = attributes.get("use_sliding_window") and attributes.get("sliding_window") is not None
    return [
        SLIDING if has_window and not is_rotated else FULL for is_rotated in rotated_layers(attributes, layers, ROTATED)
    ]


FAMILY = like_llama(
    "llama",
    "Llama",
    attributes=(BIAS, MLP_BIAS),
    ignored="max_sequence_length pretraining_tp",
)
"""LlamaForCausalLM."""
MISTRAL = like_llama(
    "mistral",
    "Mistral",
    layer_kinds=LayerKinds(window="sliding_window", default_window=4096),
    key_value_heads=8,
)
"""MistralForCausalLM (Jiang et al. 2023)."""
SMOLLM3 = like_llama(
    "smollm3",
    "SmolLM3",
    base=replace_at(BASE, {"head.tied": True}),
    attributes=(BIAS, MLP_BIAS),
    layer_kinds=LayerKinds(
        types=_smollm3_types,
        window="sliding_window",
        switch="use_sliding_window",
        rotated=ROTATED,
        bases={FULL: ("rope_theta", 2_000_000.0)},
    ),
    key_value_heads=4,
)
"""SmolLM3ForCausalLM (Hugging Face 2025): some layers have no positions."""
