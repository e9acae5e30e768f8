"""SmolLM3 (Hugging Face 2025), as in SmolLM3ForCausalLM: some layers have no positions."""

from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import Attributes, flag
from flaxformer.interop.huggingface.families.llama import BASE, BIAS, like_llama
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, rotated_layers

ROTATED = ("no_rope_layers", "no_rope_layer_interval")


def _types(attributes: Attributes, layers: int) -> list[str]:
    has_window = attributes.get("use_sliding_window") and attributes.get("sliding_window") is not None
    return [
        SLIDING if has_window and not is_rotated else FULL for is_rotated in rotated_layers(attributes, layers, ROTATED)
    ]


FAMILY = like_llama(
    "smollm3",
    "SmolLM3",
    base=replace_at(BASE, {"head.tied": True}),
    attributes=(BIAS, flag("mlp_bias", "feed_forward.bias", default=False)),
    layer_kinds=LayerKinds(
        types=_types,
        window="sliding_window",
        switch="use_sliding_window",
        rotated=ROTATED,
        bases={FULL: ("rope_theta", 2_000_000.0)},
    ),
    key_value_heads=4,
)
