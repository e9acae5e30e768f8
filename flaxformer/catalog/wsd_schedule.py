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

from flaxformer import WarmupStableDecay

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "WSD": {"optimizer.decay": WarmupStableDecay},
    "linear cool-down": {"optimizer.decay": WarmupStableDecay(cool_down="linear")},
    "cosine cool-down": {"optimizer.decay": WarmupStableDecay(cool_down="cosine")},
}
