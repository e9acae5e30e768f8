"""Sigmoid attention: a sigmoid of each logit in place of the softmax over the keys.

    Y = Concat_h(σ(Q_h K_hᵀ · scale − length_bias · log S) V_h) W_O for a query that may attend to S keys

Family: attention
Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention",
arXiv:2409.04431, sections 3 and 5.
Claim: the results of softmax attention in language, vision and speech, if the sum of a query's weights is
bounded initially.
Cost: no further weights.
Verified: the equation in NumPy.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import Attention, leaf


class SigmoidAttention(Attention):
    """Y = Concat_h(σ(Q_h K_hᵀ · scale − length_bias · log S) V_h) W_O for a query that may attend to S keys."""

    length_bias: float = leaf(1.0)

    def normalize(
        self, weights: Any, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N T S"]:
        keys = jnp.maximum(mask.sum(-1, keepdims=True), 1)
        return jnp.where(mask, jax.nn.sigmoid(logits - self.length_bias * jnp.log(keys)), 0)


VARIANTS: Mapping[str, Mapping[str, object]] = {"sigmoid": {"model.attention": SigmoidAttention}}
