"""Talking heads: learned mixtures of the heads' logits before the softmax, and of their weights after it.

    J_n = Q_n K_nᵀ / √d,  L_m = Σ_n J_n P_L[n, m],  W_m = softmax(L_m),  U_n = Σ_m W_m P_W[m, n],  Y_n = U_n V_n

Family: attention
Source: Shazeer, Lan, Cheng, Ding and Hou 2020, "Talking-Heads Attention", arXiv:2003.02436, with as many heads before,
    in and after the softmax.
Claim: lower perplexity in masked language modelling, and better transfer to language comprehension and question
    answering.
Cost: 2 N² weights per layer for N heads, and 4 N² T S operations for T queries and S keys; no fused kernel.
Verified: a loop over queries, keys and heads in float64, written from the equations; gradients by finite differences of
    it. P_L and P_W begin at the identity here, so that training begins at plain attention.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import Attention, param
from flaxformer.nn import Mask


class TalkingHeads(Attention):
    """Attention with P_L = I + `logit_mix` and P_W = I + `weight_mix` between the heads.

    A bias of the logits, such as that of a position scheme, is added to the mixed logits.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, P_L − I and P_W − I."""

        logit_mix: Float[Array, "heads n"] = param(fan_in="heads", init="zeros")
        weight_mix: Float[Array, "n heads"] = param(fan_in="n", init="zeros")

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"n": self.heads}

    def logits(
        self,
        weights: Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        logits = super().logits(weights, query, key, mask, None, scale)
        mixed = logits + jnp.einsum("...nts,nm->...mts", logits, weights.logit_mix)
        return mixed if bias is None else mixed + bias

    def normalize(
        self, weights: Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N T S"]:
        attention = super().normalize(weights, logits, mask)
        mixed = attention + jnp.einsum("...mts,mn->...nts", attention, weights.weight_mix)
        return jnp.where(mask, mixed, 0)


VARIANTS: Mapping[str, Mapping[str, object]] = {"talking heads": {"model.attention": TalkingHeads}}
