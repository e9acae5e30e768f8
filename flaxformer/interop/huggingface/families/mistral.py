"""Mistral (Jiang et al. 2023), as in MistralForCausalLM."""

from flaxformer.interop.huggingface.families.llama import like_llama
from flaxformer.interop.huggingface.layer_kinds import LayerKinds

FAMILY = like_llama(
    "mistral",
    "Mistral",
    layer_kinds=LayerKinds(window="sliding_window", default_window=4096),
    key_value_heads=8,
)
