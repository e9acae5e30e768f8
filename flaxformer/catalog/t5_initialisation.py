"""T5's initial scale: the scale 1/√d_head of the logits is in the initial queries, and not in the attention.

    W ~ N(0, 1 / fan-in), but N(0, 1 / (fan-in · d_head)) for queries, with logits Q Kᵀ

Family: initialisation
Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
arXiv:1910.10683, and its code.
Claim: none; the paper does not compare it.
Cost: none.
Verified: the factors of the implementation of Hugging Face, written out.
"""

from collections.abc import Mapping

from jaxtyping import Array

from flaxformer import LeCun, Spec


class T5Initializer(LeCun):
    """Variance gain² / fan-in, and gain² / (fan-in · d_head) of queries."""

    def std(self, spec: Spec) -> float | Array:
        scale = super().std(spec)
        return scale * spec.shape[-1] ** -0.5 if spec.path.endswith("attention/query") else scale


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "T5": {"model.initializer": T5Initializer(), "model.attention.scale_exponent": 0.0}
}
