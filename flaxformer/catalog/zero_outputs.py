"""Zero outputs: the last matrix of each residual branch begins at zero, so that the first model is the identity.

    x + f(x) W_O with W_O = 0 before training, in attention and in the feed-forward network

Family: initialisation
Source: Zhang et al. 2019, "Fixup Initialization: Residual Learning Without Normalization", arXiv:1901.09321, rule 1; in
Transformers, Jordan et al. 2024, modded-nanogpt, github.com/KellerJordan/modded-nanogpt.
Claim: as a part of Fixup, deep residual networks train without normalisation.
Cost: none.
Verified: the initial weights, and the residual stream of the first model.
"""

from collections.abc import Mapping

from flaxformer import ZERO_OUTPUTS

VARIANTS: Mapping[str, Mapping[str, object]] = {"zero outputs": {"model.initial": (ZERO_OUTPUTS,)}}
