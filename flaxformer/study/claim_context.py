"""Context of a claim: the simple effects of an interaction, and the effect without the seeds that diverged."""

import dataclasses
from collections.abc import Sequence

from flaxformer.digests import JsonObject
from flaxformer.study.arms import ArmSummary
from flaxformer.study.claim import Labels
from flaxformer.study.costs import CostRatio, claim_cost_ratios
from flaxformer.study.statistics import Judgement, judge_difference, judge_equivalence, with_verdicts

Term = tuple[float, Labels]


@dataclasses.dataclass(frozen=True)
class SimpleEffect:
    """One of the two effects that an interaction compares: first level against second, under some other labels."""

    first: Labels
    """Labels of the first arm that differ from those of the second."""
    second: Labels
    context: Labels
    """Labels by which the two simple effects differ."""
    judgement: Judgement
    """Judged alone; it belongs to no family, and is no verdict on a claim."""


@dataclasses.dataclass(frozen=True)
class ClaimContext:
    """Results that a report shows with a claim."""

    simple_effects: tuple[SimpleEffect, ...] = ()
    """The two effects that an interaction compares; empty for other claims."""
    diverged: int = 0
    """Number of seeds at which one of its runs diverged."""
    without_diverged: Judgement | None = None
    """Test without these seeds, if there are any."""
    cost_ratios: tuple[CostRatio, ...] = ()
    """Unequal costs of the arms that it compares."""


def judge_claim(claim: JsonObject, differences: Sequence[float], exact: bool) -> Judgement:
    """Return the judgement of one declared claim, before the correction for its family."""
    if claim["kind"] == "equal":
        return judge_equivalence(differences, claim["within"], exact)
    return judge_difference(differences, claim["by"], exact)


def with_context(
    claims: Sequence[JsonObject],
    differences: Sequence[Sequence[float]],
    judgements: Sequence[Judgement],
    measured: Sequence[Sequence[ArmSummary]],
    exact: bool,
) -> tuple[list[Judgement], list[ClaimContext]]:
    """Return the judgements, qualified where diverged runs decide or costs differ, and the context of each.

    Args:
      claims: declared claims.
      differences: differences per seed of each.
      judgements: judgement of each, with its verdict.
      measured: the arms and quantities among which each claim has its own.
      exact: True if the numbers do not depend on the seed.
    """
    diverged = [diverged_seeds(claim["terms"], arms) for claim, arms in zip(claims, measured, strict=True)]
    without = []
    for claim, own, lost in zip(claims, differences, diverged, strict=True):
        kept = [difference for difference, is_lost in zip(own, lost, strict=True) if not is_lost]
        without.append(judge_claim(claim, kept, exact))
    qualified, contexts = [], []
    known = zip(claims, measured, judgements, diverged, with_verdicts(without), strict=True)
    for claim, arms, judgement, lost, again in known:
        if any(lost) and again.verdict != judgement.verdict:
            found = (*judgement.qualifications, "divergence decides")
            judgement = dataclasses.replace(judgement, qualifications=found)
        ratios = claim_cost_ratios(claim["terms"], arms)
        if ratios:
            judgement = dataclasses.replace(judgement, qualifications=(*judgement.qualifications, "unequal cost"))
        qualified.append(judgement)
        effects = tuple(simple_effects(claim["terms"], arms))
        contexts.append(ClaimContext(effects, sum(lost), again if any(lost) else None, ratios))
    return qualified, contexts


def simple_effects(terms: Sequence[Term], measured: Sequence[ArmSummary]) -> list[SimpleEffect]:
    """Return the two effects that an interaction compares, in the direction of the claim; none for other claims."""
    if len(terms) != 4:
        return []
    found, direction = [], terms[0][0]
    for first, second, other in (
        (terms[0][1], terms[1][1], terms[2][1]),
        (terms[2][1], terms[3][1], terms[0][1]),
    ):
        values = _values([(direction, first), (-direction, second)], measured)
        changed = [name for name in first if first[name] != second.get(name)]
        context = {name: label for name, label in first.items() if other.get(name) != label}
        levels = [{name: labels[name] for name in changed} for labels in (first, second)]
        judgement = judge_difference([value for value in values if value is not None])
        found.append(SimpleEffect(levels[0], levels[1], context, judgement))
    return found


def _values(terms: Sequence[Term], measured: Sequence[ArmSummary]) -> list[float | None]:
    """The contrast at each seed; None where a run or quantity is missing."""
    arms = [arm for _, labels in terms for arm in measured if arm.labels == labels]
    if len(arms) < len(terms):
        return []
    columns = zip(*(arm.scores for arm in arms), strict=True)
    weights = [weight for weight, _ in terms]
    return [
        sum(w * s for w, s in zip(weights, column, strict=True) if s is not None) if None not in column else None
        for column in columns
    ]


def diverged_seeds(terms: Sequence[Term], measured: Sequence[ArmSummary]) -> list[bool]:
    """Return, for each seed with a difference, whether one of the claim's runs diverged."""
    arms = [arm for _, labels in terms for arm in measured if arm.labels == labels]
    values = _values(terms, measured)
    if not values:
        return []
    return [
        any(own) for value, *own in zip(values, *(arm.has_diverged for arm in arms), strict=True) if value is not None
    ]
