"""gpt-oss (OpenAI 2025), as in GptOssForCausalLM: attention sinks and experts; weights of more than 4 bits."""

from collections.abc import Mapping

import numpy as np

from flaxformer.catalog import ClippedExperts, SinkAttention
from flaxformer.interop.huggingface.attributes import Attributes, flag, number
from flaxformer.interop.huggingface.families.llama import ATTENTION, PRE_NORMS, like_llama
from flaxformer.interop.huggingface.families.llama import BASE as LLAMA
from flaxformer.interop.huggingface.layer_kinds import FULL, LayerKinds, every
from flaxformer.interop.tensors import TensorLayout

TENSORS = (
    ATTENTION
    + PRE_NORMS
    + """
model.layers.*.self_attn.sinks                 blocks/*/attention/sink                  tensor
model.layers.*.mlp.router.weight               blocks/*/feed_forward/router             matrix
model.layers.*.mlp.router.bias                 blocks/*/feed_forward/router_bias        tensor
model.layers.*.mlp.experts.gate_up_proj        blocks/*/feed_forward/gate+up            alternating
model.layers.*.mlp.experts.gate_up_proj_bias   blocks/*/feed_forward/gate_bias+up_bias  alternating
model.layers.*.mlp.experts.down_proj           blocks/*/feed_forward/down               same
model.layers.*.mlp.experts.down_proj_bias      blocks/*/feed_forward/down_bias          same
"""
)
ALTERNATING = TensorLayout(
    shape=lambda spec: (*spec.shape, 1),
    load=lambda weight, spec: weight[..., 0],
    save=lambda weight, spec: weight[..., None],
    axis=-1,
    joined=lambda shape: (*shape[:-2], shape[-2] * shape[-1]),
)
"""Columns of the two weights in turn."""
POSITIONS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Those of a file without any."""


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return attributes with positions."""
    has_positions = attributes.get("rope_parameters") or attributes.get("rope_scaling")
    return attributes if has_positions else {**attributes, "rope_parameters": POSITIONS}


FAMILY = like_llama(
    "gpt_oss",
    "GptOss",
    base=LLAMA.replace(
        attention=SinkAttention(bias=True, out_bias=True), feed_forward=ClippedExperts(experts=128, active=4)
    ),
    tensors=TENSORS,
    attributes=(
        flag("attention_bias", "attention.bias", "attention.out_bias", default=True),
        number("num_local_experts", "feed_forward.experts", default=128),
        number("num_experts_per_tok", "feed_forward.active", default=4),
        number("swiglu_alpha", "feed_forward.alpha", default=1.702),
        number("swiglu_limit", "feed_forward.limit", default=7.0),
    ),
    layer_kinds=LayerKinds(
        types=every(2, FULL),
        window="sliding_window",
        default_window=128,
        bases={FULL: ("rope_theta", 150_000.0)},
        is_scaled=True,
    ),
    epsilon=1e-5,
    key_value_heads=8,
    d_head=64,
    activated=None,
    ignored="hidden_act router_aux_loss_coef output_router_logits",
    kinds={"alternating": (("", "", ALTERNATING),)},
    normalize=_normalize,
)
