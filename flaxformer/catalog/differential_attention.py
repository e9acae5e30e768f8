"""Differential attention: each head subtracts one softmax map from another, so that their common part cancels.

    (softmax(Q_1 K_1ᵀ · scale) − λ softmax(Q_2 K_2ᵀ · scale)) [V_1 V_2], normalised, times 1 − λ_init

Family: attention
Source: Ye et al. 2024, "Differential Transformer", arXiv:2410.05258, section 2.1 (with one initial λ for all
layers, section 3.8).
Claim: the loss of a softmax Transformer with 65% of its size or training tokens; better retrieval of key
information.
Cost: 4 d_head weights per layer; attention weights of all pairs are computed without a fused kernel.
Verified: the difference of two softmax maps and its norm, in NumPy.
"""

from collections.abc import Iterator, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import (
    Attention,
    leaf,
    param,
)
from flaxformer.nn import Mask, rms_norm


class DifferentialAttention(Attention):
    """Heads (softmax(Q₁ K₁ᵀ · scale) − λ softmax(Q₂ K₂ᵀ · scale)) [V₁ V₂], each normalised, then mapped by W_O.

    Two neighbouring heads of `Attention` are the maps of a differential head, and their values are concatenated. All
    heads of a layer share λ = exp(q₁ · k₁) − exp(q₂ · k₂) + initial_lambda, with learned vectors of width d_head. The
    initial λ is the same in every layer, a variant of the paper (section 3.8) with the same results.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the vectors of λ, one row per map."""

        lambda_query: Float[Array, "maps d_head"] = param(std=0.1, decay=False)
        lambda_key: Float[Array, "maps d_head"] = param(std=0.1, decay=False)

    initial_lambda: float = leaf(0.8)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name, heads in (("heads", self.heads), ("key_value_heads", self.key_value_heads or self.heads)):
            if heads % 2:
                yield f"{name} is {heads}; expected an even number, two per differential head"

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"maps": 2}

    def normalize(
        self, weights: Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N//2 T S"]:
        maps = super().normalize(weights, logits, mask)
        first, second = jnp.exp((weights.lambda_query * weights.lambda_key).sum(-1))
        return maps[..., 0::2, :, :] - (first - second + self.initial_lambda) * maps[..., 1::2, :, :]

    def combine(
        self, weights: Weights, attention: Float[Array, "*batch N//2 T S"], value: Array, mask: Mask | None
    ) -> Float[Array, "*batch T N d_v"]:
        pairs = value.reshape(*value.shape[:-2], value.shape[-2] // 2, 2 * value.shape[-1])
        y = rms_norm(super().combine(weights, attention, pairs, mask)) * (1 - self.initial_lambda)
        return y.astype(value.dtype).reshape(*y.shape[:-2], 2 * y.shape[-2], y.shape[-1] // 2)


VARIANTS: Mapping[str, Mapping[str, object]] = {"differential": {"model.attention": DifferentialAttention}}
