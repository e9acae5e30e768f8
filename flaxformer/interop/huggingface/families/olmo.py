"""OLMo 2 (OLMo Team 2024), as in Olmo2ForCausalLM, and OLMo 3 (2025), as in Olmo3ForCausalLM.

The norms are after the branches, and those of queries and keys over all heads.
"""

from flaxformer.catalog import RMSNormOverHeads
from flaxformer.components import RES_POST_NORM
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.families.llama import BASE as LLAMA
from flaxformer.interop.huggingface.families.llama import BIAS, BODY, QUERY_KEY_NORMS, like_llama
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, every

TENSORS = (
    BODY
    + QUERY_KEY_NORMS
    + """
model.layers.*.post_attention_layernorm      blocks/*/attention_connection/post_branch     norm
model.layers.*.post_feedforward_layernorm    blocks/*/feed_forward_connection/post_branch  norm
"""
)
BASE = replace_at(LLAMA, {"norm": RES_POST_NORM, "attention.query_key_norm": RMSNormOverHeads()})
EPSILONS = ("norm_kind.epsilon", "attention.query_key_norm.epsilon")
OLMO2 = like_llama("olmo2", "Olmo2", base=BASE, tensors=TENSORS, attributes=(BIAS,), epsilon=1e-5, epsilons=EPSILONS)
OLMO3 = like_llama(
    "olmo3",
    "Olmo3",
    base=BASE,
    tensors=TENSORS,
    attributes=(BIAS,),
    layer_kinds=LayerKinds(
        types=every(4, FULL),
        window="sliding_window",
        default_window=4096,
        bases={FULL: ("rope_theta", 500_000.0), SLIDING: ("rope_theta", 500_000.0)},
    ),
    epsilon=1e-5,
    epsilons=EPSILONS,
)
"""OLMo 2 with windows, and scaled positions in the other layers."""
