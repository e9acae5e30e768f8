"""Warm-up, stable, decay (WSD): a constant rate that falls only in the last steps, so that a run can be extended.

    rate = peak · g(e) in the last `share` of the steps, of which e is the elapsed fraction: g = 1 − √e, 1 − e, or
    ½ (1 + cos πe)

Family: schedules
Source: Hu et al. 2024, "MiniCPM", arXiv:2404.06395, section 4; the forms 1 − √e and 1 − e from Hägele et al. 2024,
"Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", arXiv:2405.18392.
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
    static,
)


class WarmupStableDecay(Schedule):
    """Peak rate until the last `share` of the steps, in which it falls to 0.

    cool_down: with the elapsed fraction e of the decay, 1 − √e ("sqrt"), 1 − e ("linear") or ½ (1 + cos πe) ("cosine").
    """

    share: float = leaf(0.2, above=0, at_most=1)
    cool_down: str = static("sqrt", choices=("sqrt", "linear", "cosine"), omit_default=True)

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        elapsed = jnp.clip((progress - (1 - self.share)) / self.share, 0, 1)
        if self.cool_down == "cosine":
            return (1 + jnp.cos(jnp.pi * elapsed)) / 2
        return 1 - (jnp.sqrt(elapsed) if self.cool_down == "sqrt" else elapsed)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "WSD": {"optimizer.decay": WarmupStableDecay},
    "linear cool-down": {"optimizer.decay": WarmupStableDecay(cool_down="linear")},
    "cosine cool-down": {"optimizer.decay": WarmupStableDecay(cool_down="cosine")},
}
