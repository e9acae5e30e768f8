"""Attention sink: a learned logit without a key in each softmax, so that a head need not attend to any token.

    A[t, s] = e^Z[t, s] / (e^sink + Σ_r e^Z[t, r]), with a learned sink per head

Family: attention
Source: OpenAI 2025, gpt-oss (a learned sink per head); Miller 2023, "Attention Is Off By One" (a fixed sink of
0).
Claim: The weights of a softmax sum to 1 even if no key is relevant, and trained models then attend to the first
token; with a sink they need not (Gu et al. 2024, "When Attention Sink Emerges in Language Models").
Cost: one weight per head and layer; no matrix product.
Verified: the softmax with a further term in its denominator, in NumPy.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import (
    Attention,
    leaf,
    param,
)


class SinkAttention(Attention):
    """Attention with the weights A[t, s] = e^Z[t, s] / (e^sink + Σ_r e^Z[t, r]), and a learned sink per head."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, and one sink per head."""

        sink: Float[Array, "heads"] = param(value="initial_sink", decay=False)

    initial_sink: float = leaf(0.0)

    def normalize(
        self, weights: Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N T S"]:
        sink = jnp.broadcast_to(weights.sink[:, None, None], (*logits.shape[:-1], 1))
        logits = jnp.concatenate([logits, sink], axis=-1)
        mask = jnp.concatenate([mask, jnp.ones(sink.shape, bool)], axis=-1)
        return super().normalize(weights, logits, mask)[..., :-1]


VARIANTS: Mapping[str, Mapping[str, object]] = {"learned sink": {"model.attention": SinkAttention}}
