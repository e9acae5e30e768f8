"""Warm-up, stable, decay (WSD): a constant rate that falls only in the last steps, so that a run can be extended.

    rate = peak · (1 − √(elapsed fraction of the decay)) in the last `share` of the steps

Family: schedules
Source: Hu et al. 2024, "MiniCPM", arXiv:2404.06395, section 4; the form 1 − √ from Hägele et al. 2024, "Scaling
Laws and Compute-Optimal Training Beyond Fixed Training Durations", arXiv:2405.18392.
Claim: the loss of a cosine schedule, without fixing the length of training before.
Cost: none.
Verified: values at given fractions of the training.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Schedule,
    leaf,
)


class WarmupStableDecay(Schedule):
    """Peak rate until the last `share` of the steps, in which it falls as 1 − √(elapsed fraction of the decay)."""

    share: float = leaf(0.2, above=0, at_most=1)

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        elapsed = jnp.clip((progress - (1 - self.share)) / self.share, 0, 1)
        return 1 - jnp.sqrt(elapsed)


VARIANTS: Mapping[str, Mapping[str, object]] = {"WSD": {"optimizer.decay": WarmupStableDecay}}
