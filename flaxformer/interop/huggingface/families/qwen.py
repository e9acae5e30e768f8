"""Qwen 2 and 2.5 (Qwen Team 2024), as in Qwen2ForCausalLM, and Qwen 3 (2025), as in Qwen3ForCausalLM."""

from flaxformer.components import RMSNorm
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import Attributes
from flaxformer.interop.huggingface.families.llama import BASE, BIAS, BODY, PRE_NORMS, QUERY_KEY_NORMS, like_llama
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds


def _types(attributes: Attributes, layers: int) -> list[str]:
    first = attributes.get("max_window_layers", 28) if attributes.get("use_sliding_window") else layers
    return [SLIDING if layer >= first else FULL for layer in range(layers)]


LAYER_KINDS = LayerKinds(
    types=_types,
    window="sliding_window",
    default_window=4096,
    switch="use_sliding_window",
    read_by_types=("max_window_layers",),
)
QWEN2 = like_llama(
    "qwen2",
    "Qwen2",
    base=BASE.replace(attention=BASE.attention.replace(bias=True, out_bias=False)),
    layer_kinds=LAYER_KINDS,
    key_value_heads=32,
)
QWEN3 = like_llama(
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
"""Qwen 2 with norms of each head's queries and keys."""
