"""Cautious weight decay: a weight shrinks only where the update of the optimizer shrinks it too.

    w ← w − rate · (u + λ 1[u ⊙ w ≥ 0] ⊙ w), with the direction u of any optimizer

Family: optimizers
Source: Chen et al. 2025, "Cautious Weight Decay", arXiv:2510.12402.
Claim: lower final loss of AdamW, Lion and Muon in pre-training at millions to billions of weights, with no new numbers.
Cost: none.
Verified: a loop over weights in NumPy.
"""

from collections.abc import Mapping

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "cautious decay": {"optimizer.cautious_decay": True, "optimizer.weight_decay": 0.1}
}
