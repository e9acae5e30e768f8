"""Cautious weight decay: a weight shrinks only where the update of the optimizer shrinks it too.

    w ← w − rate · (u + λ 1[u ⊙ w ≥ 0] ⊙ w), with the direction u of AdamW

Family: optimizers
Source: Chen et al. 2025, "Cautious Weight Decay", arXiv:2510.12402.
Claim: lower final loss of AdamW, Lion and Muon in pre-training at millions to billions of weights, with no new numbers.
Cost: none.
Verified: a loop over weights in NumPy.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from flaxformer import AdamW


class CautiousAdamW(AdamW):
    """AdamW whose weight decay applies where the signs of the direction and of the weight do not differ."""

    def decayed_direction(self, scales: PyTree) -> list[optax.GradientTransformation]:
        parts = super().decayed_direction(scales)
        return parts if self.weight_decay is None else [*parts[:-1], cautious(parts[-1])]


def cautious(decay: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transform that adds weight decay where the signs of update and weight do not differ."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        decayed, state = decay.update(updates, state, params)
        return jax.tree.map(lambda u, d, w: jnp.where(u * w >= 0, d, u), updates, decayed, params), state

    return optax.GradientTransformation(decay.init, update)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "cautious decay": {"optimizer": CautiousAdamW, "optimizer.weight_decay": 0.1}
}
