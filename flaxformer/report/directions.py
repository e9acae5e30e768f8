"""Verdicts of interactions in words, qualified by the signs of the effects that they compare."""

from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report.phrasing import labels, with_labels


def verdict(claim: JudgedClaim) -> str:
    """The verdict of a claim; "supported as a difference" for an interaction that `direction` qualifies."""
    return f"{claim.judgement.verdict} as a difference" if direction(claim) else claim.judgement.verdict


def direction(claim: JudgedClaim) -> str:
    """The direction of the effects that an interaction compares, in words, if they are not both as claimed; else empty.

    A supported interaction says that one effect exceeds the other, and not that either is in the claimed direction.
    """
    if "simple effects" not in claim.judgement.qualifications:
        return ""
    first, second = claim.context.simple_effects
    if first.judgement.effect.mean <= 0:
        less = f"it is less against it{with_labels(first.context)} than{with_labels(second.context)}"
        return f"the effect is not in the claimed direction in either arm: {less}"
    place = labels(second.context) or "the other arm"
    return f"the effect is in the claimed direction{with_labels(first.context)} only, and against it with {place}"
