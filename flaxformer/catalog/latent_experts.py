"""Latent experts: a mixture of experts between a map into a narrow space and a map out of it (LatentMoE).

    z = x W_down, y = (Σ_e g_e(x) relu(z U_e) D_e) W_up, with the gates of the most probable experts for x

Family: feed-forward
Source: Elango et al. 2026, "LatentMoE: Toward Optimal Accuracy per FLOP and Parameter in Mixture of Experts",
arXiv:2601.18089; its abstract and descriptions of the layer were read. Each expert is a network with ReLU here, and the
router and its balance loss are those of the mixture of experts.
Claim: higher accuracy per FLOP and per weight than mixtures of full width, at up to 95B weights and 1T tokens; the cost
that a narrow space saves goes into more experts, of which more are active.
Cost: 2 D ℓ weights for the two maps; each expert has ℓ / D of the weights and multiplications of one of width D.
Verified: a loop over tokens and experts in float64.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float, Int

from flaxformer import param, static
from flaxformer.catalog import MixtureOfExperts
from flaxformer.nn.experts import mix_experts
from flaxformer.nn.linear import linear


class LatentExperts(MixtureOfExperts):
    """y = (Σ_e g_e(x) relu(x W_down U_e) D_e) W_up; the router reads x.

    d_latent: width ℓ of what the experts read and return; None for a quarter of d_model.
    """

    class Weights(MixtureOfExperts.Weights):
        """Router, W_down, the matrices U and D of each expert, and W_up."""

        enter: Float[Array, "d_model d_latent"] = param(fan_in="d_model", init="branch")
        up: Float[Array, "experts d_latent d_ff"] = param(fan_in="d_latent", batch_axis="experts", init="branch")
        down: Float[Array, "experts d_ff d_latent"] = param(fan_in="d_ff", batch_axis="experts", init="branch")
        leave: Float[Array, "d_latent d_model"] = param(fan_in="d_latent", init="branch")

    d_latent: int | None = static(None, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_latent": self.d_latent or max(1, model["d_model"] // 4)}

    def mix(
        self,
        weights: Any,
        x: Float[Array, "*batch T D"],
        gates: Float[Array, "*batch T active"],
        chosen: Int[Array, "*batch T active"],
    ) -> Float[Array, "*batch T D"]:
        mixed = mix_experts(linear(x, weights.enter), weights.up, weights.down, gates, chosen)
        return linear(mixed.astype(x.dtype), weights.leave)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "latent experts": {"model.feed_forward": LatentExperts, "model.feed_forward.active": 4}
}
