"""Scalable softmax: attention logits times s · log n, where n is the number of keys that the query may read.

    softmax(s log n · q Kᵀ · scale), with a learned s per head

A softmax over n keys flattens as n grows; with the factor log n, the weight of one key among n stays.

Family: attention
Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399. s begins at 0.43 here, the value
    of its figure 1.
Claim: lower training loss at 162M weights, and retrieval of a key at ten times the length of training.
Cost: one weight per head and layer; no matrix product.
Verified: a loop over queries and keys in float64, written from the equation.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import Attention, param


class ScalableSoftmax(Attention):
    """Attention with the weights softmax(s log n · logits)."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the s of each head."""

        scale_per_head: Float[Array, "heads"] = param(value=0.43, decay=False)

    def normalize(
        self, weights: Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N T S"]:
        n = mask.sum(-1, keepdims=True).astype(logits.dtype)
        factor = weights.scale_per_head[:, None, None] * jnp.log(jnp.maximum(n, 1))
        return super().normalize(weights, factor * logits, mask)


VARIANTS: Mapping[str, Mapping[str, object]] = {"scalable softmax": {"model.attention": ScalableSoftmax}}
