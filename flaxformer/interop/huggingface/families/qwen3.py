"""Qwen 3 (Qwen Team 2025), as in Qwen3ForCausalLM: norms of each head's queries and keys."""

from flaxformer.components import RMSNorm
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.families.llama import BASE, BIAS, BODY, PRE_NORMS, QUERY_KEY_NORMS, like_llama
from flaxformer.interop.huggingface.families.qwen2 import LAYER_KINDS

FAMILY = like_llama(
    "qwen3",
    "Qwen3",
    base=replace_at(BASE, {"attention.query_key_norm": RMSNorm()}),
    tensors=BODY + PRE_NORMS + QUERY_KEY_NORMS,
    attributes=(BIAS,),
    layer_kinds=LAYER_KINDS,
    epsilons=("norm_kind.epsilon", "attention.query_key_norm.epsilon"),
    key_value_heads=32,
    d_head=128,
)
