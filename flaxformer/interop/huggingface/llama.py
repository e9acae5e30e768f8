"""Llama (Touvron et al. 2023), as in LlamaForCausalLM."""

from collections.abc import Mapping

import numpy as np

from flaxformer.components import PRE, Gated, LanguageModel, RMSNorm, Rotary, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import Attributes, activation, choice, number, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.tensors import MATRIX, TABLE, VECTOR, TensorRow, layers, linear
from flaxformer.system.errors import UserError

LAYER = (
    TensorRow("input_layernorm.weight", ("attention_connection/pre/gain",), VECTOR),
    *linear("self_attn.q_proj", "attention/query"),
    *linear("self_attn.k_proj", "attention/key"),
    *linear("self_attn.v_proj", "attention/value"),
    *linear("self_attn.o_proj", "attention/out"),
    TensorRow("post_attention_layernorm.weight", ("feed_forward_connection/pre/gain",), VECTOR),
    *linear("mlp.gate_proj", "feed_forward/gate"),
    *linear("mlp.up_proj", "feed_forward/up"),
    *linear("mlp.down_proj", "feed_forward/down"),
)


def _rows(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("model.embed_tokens.weight", ("embedding/tokens",), TABLE),
        *layers("model.layers", "blocks", LAYER, config.layers),
        TensorRow("model.norm.weight", ("final_norm/gain",), VECTOR),
        TensorRow("lm_head.weight", ("head/matrix",), MATRIX),
    )


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return attributes with those of rotary positions at the top level, as before transformers 5."""
    flat = {name: value for name, value in attributes.items() if name not in ("rope_parameters", "rope_scaling")}
    for group in ("rope_parameters", "rope_scaling"):
        for name, value in (attributes.get(group) or {}).items():
            name = "rope_type" if name == "type" else name
            if flat.setdefault(name, value) != value:
                raise UserError(f"config.json has '{name}' {flat[name]!r}, and {value!r} in '{group}'; expected one")
    if (kind := flat.get("rope_type")) not in (None, "default"):
        raise UserError(
            f"config.json has rotary positions of the type {kind!r}, and scaling of rotary positions is not supported; "
            "expected rope_type 'default', or no rope_scaling"
        )
    return flat


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    heads={"LlamaModel": final_vectors, "LlamaForSequenceClassification": classifier("last", bias=False)},
    classifier="score",
    base=ModelConfig(
        inputs=Tokens(std=0.02),
        norm=PRE,
        norm_kind=RMSNorm(),
        positions=Rotary(),
        head=LanguageModel(),
        mask_pattern="causal",
        feed_forward=Gated(),
    ),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number(
            "num_key_value_heads",
            "attention.key_value_heads",
            default=lambda attributes: attributes["num_attention_heads"],
        ),
        number(
            "head_dim",
            "attention.d_head",
            default=lambda attributes: attributes["hidden_size"] // attributes["num_attention_heads"],
        ),
        number("intermediate_size", "feed_forward.d_ff"),
        activation("hidden_act", "feed_forward.activation", default="silu"),
        number("rms_norm_eps", "norm_kind.epsilon", default=1e-6),
        number("rope_theta", "positions.base", default=10_000.0),
        choice("tie_word_embeddings", {value: {"head.tied": value} for value in (False, True)}, False),
        choice(
            "attention_bias",
            {value: {"attention.bias": value, "attention.out_bias": value} for value in (False, True)},
            False,
        ),
        choice("mlp_bias", {value: {"feed_forward.bias": value} for value in (False, True)}, False),
        unused_attribute("attention_dropout"),
    ),
    rows=_rows,
    fixed={"rope_type": "default", "partial_rotary_factor": 1.0},
    ignored={
        "a limit that the function does not have": "max_position_embeddings max_sequence_length",
        "how the same matrices are stored and multiplied": "pretraining_tp",
    },
    normalize=_normalize,
    prefix="model.",
    outer=("lm_head.", "score."),
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    dropped=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
