"""Gemma 2 (Gemma Team 2024), as in Gemma2ForCausalLM, and the text model of Gemma 3 (2025), as in Gemma3ForCausalLM."""

import math

from flaxformer.components import SANDWICH, ZeroCentredRMSNorm
from flaxformer.config import ModelConfig
from flaxformer.core.paths import get_at, replace_at
from flaxformer.interop.huggingface.attributes import Attributes, optional
from flaxformer.interop.huggingface.families.llama import BASE as LLAMA
from flaxformer.interop.huggingface.families.llama import BIAS, BODY, QUERY_KEY_NORMS, like_llama
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, every
from flaxformer.system.errors import UserError

TENSORS = (
    BODY
    + """
model.layers.*.input_layernorm               blocks/*/attention_connection/pre             norm
model.layers.*.post_attention_layernorm      blocks/*/attention_connection/post_branch     norm
model.layers.*.pre_feedforward_layernorm     blocks/*/feed_forward_connection/pre          norm
model.layers.*.post_feedforward_layernorm    blocks/*/feed_forward_connection/post_branch  norm
"""
)
BASE = replace_at(
    LLAMA,
    {
        "norm": SANDWICH,
        "norm_kind": ZeroCentredRMSNorm(),
        "head.tied": True,
        "inputs.scale_exponent": 0.5,
    },
)


class QueryScale:
    """Conversion of query_pre_attn_scalar s: the logits have the factor s^−½ = d_head^−scale_exponent."""

    names = ("query_pre_attn_scalar",)

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config with the exponent."""
        scalar, width = attributes.get("query_pre_attn_scalar", 256), get_at(config, "attention.d_head")
        if type(scalar) is not int or scalar < 1 or (width == 1 and scalar != 1):
            raise UserError(f"config.json has 'query_pre_attn_scalar' {scalar!r}; expected an integer of at least 1")
        exponent = 0.5 if scalar == width else 0.5 * math.log(scalar, width)
        return replace_at(config, {"attention.scale_exponent": exponent})

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return the nearest integer."""
        exponent = get_at(config, "attention.scale_exponent")
        return {"query_pre_attn_scalar": round(get_at(config, "attention.d_head") ** (2 * exponent))}


FIXED = {"use_bidirectional_attention": False}
IGNORED = "hidden_act cache_implementation"
GEMMA2 = like_llama(
    "gemma2",
    "Gemma2",
    base=BASE,
    tensors=TENSORS,
    attributes=(
        optional("final_logit_softcapping", "head.logit_cap", default=30.0),
        optional("attn_logit_softcapping", "attention.logit_cap", default=50.0),
        BIAS,
    ),
    groups=(QueryScale(),),
    layer_kinds=LayerKinds(types=every(2, FULL), window="sliding_window", default_window=4096),
    key_value_heads=4,
    d_head=256,
    activated=("hidden_activation", "gelu_pytorch_tanh"),
    fixed=FIXED,
    ignored=IGNORED,
)
GEMMA3 = like_llama(
    "gemma3_text",
    "Gemma3",
    base=replace_at(BASE, {"attention.query_key_norm": ZeroCentredRMSNorm()}),
    tensors=TENSORS + QUERY_KEY_NORMS,
    attributes=(optional("final_logit_softcapping", "head.logit_cap", default=None), BIAS),
    groups=(QueryScale(),),
    layer_kinds=LayerKinds(
        types=every(6, FULL, "sliding_window_pattern"),
        window="sliding_window",
        default_window=4096,
        bases={FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)},
        read_by_types=("sliding_window_pattern", "_sliding_window_pattern"),
    ),
    epsilons=("norm_kind.epsilon", "attention.query_key_norm.epsilon"),
    key_value_heads=4,
    d_head=256,
    activated=("hidden_activation", "gelu_pytorch_tanh"),
    fixed=FIXED | {"attn_logit_softcapping": None},  # which Gemma3ForCausalLM does not apply
    ignored=IGNORED,
)
"""Two bases of rotary positions, and norms of each head's queries and keys."""
