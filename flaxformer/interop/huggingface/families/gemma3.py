"""Gemma 3 (Gemma Team 2025), as in Gemma3ForCausalLM: the model of texts, with two bases of rotary positions."""

from flaxformer.components import ZeroCentredRMSNorm
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import optional
from flaxformer.interop.huggingface.families import gemma2
from flaxformer.interop.huggingface.families.llama import BIAS, QUERY_KEY_NORMS, like_llama
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, every

FAMILY = like_llama(
    "gemma3_text",
    "Gemma3",
    base=replace_at(gemma2.BASE, {"attention.query_key_norm": ZeroCentredRMSNorm()}),
    tensors=gemma2.TENSORS + QUERY_KEY_NORMS,
    attributes=(optional("final_logit_softcapping", "head.logit_cap", default=None), BIAS),
    groups=(gemma2.QueryScale(),),
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
    fixed=gemma2.FIXED | {"attn_logit_softcapping": None},  # which Gemma3ForCausalLM does not apply
    ignored=gemma2.IGNORED,
)
