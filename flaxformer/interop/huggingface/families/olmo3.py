"""OLMo 3 (OLMo Team 2025), as in Olmo3ForCausalLM: OLMo 2 with windows, and scaled positions in the other layers."""

from flaxformer.interop.huggingface.families.llama import BIAS, like_llama
from flaxformer.interop.huggingface.families.olmo2 import BASE, EPSILONS, TENSORS
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds, every

FAMILY = like_llama(
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
