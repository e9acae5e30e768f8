"""Judging of claims: paired differences, tests, families, what qualifies them, and claims declared after their data."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from flaxformer.analysis.arms import ArmSummary, CostRatio, claim_cost_ratios
from flaxformer.analysis.claim_history import ClaimDeclaration, WithdrawnClaim
from flaxformer.statistics.finite import WithoutValue, join_arms
from flaxformer.statistics.judgement import Judgement, Qualification, judge_difference, judge_equivalence, with_verdicts
from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredClaim, Labels, Terms, key_of


@dataclasses.dataclass(frozen=True)
class SimpleEffect:
    """One of the two effects that an interaction compares: first level against second, under some other labels."""

    first: Labels
    """Labels of the first arm that differ from those of the second."""
    second: Labels
    context: Labels
    """Labels by which the two simple effects differ."""
    judgement: Judgement
    """Judged alone; it belongs to no family, and is not a verdict on a claim."""


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
    without_value: tuple[WithoutValue, ...] = ()
    """Seeds at which a number of the claim is not finite, by its name."""

    def is_denied(self, kind: str) -> bool:
        """True if one of the effects that an interaction compares is not in the claimed direction in the mean.

        "A helps X more than Y" is then not what the data show: A hurts Y, or both. An equality claims no direction.
        """
        return kind != "equal" and any(effect.judgement.effect.mean <= 0 for effect in self.simple_effects)


def judge_claim(claim: DeclaredClaim, differences: Sequence[float], exact: bool) -> Judgement:
    """Return the judgement of one declared claim, before the correction for its family."""
    if claim.within is not None:
        return judge_equivalence(differences, claim.within, exact)
    return judge_difference(differences, claim.by, exact)


def qualify(judgement: Judgement, kind: str, context: ClaimContext) -> Judgement:
    """Return the judgement of a claim of a kind with the qualifications that follow from its context."""
    without = context.without_diverged
    holds: dict[Qualification, bool] = {
        "not finite": bool(context.without_value),
        "simple effects": judgement.verdict == "supported" and context.is_denied(kind),
        "divergence decides": without is not None and without.verdict != judgement.verdict,
        "unequal cost": bool(context.cost_ratios),
    }
    qualifications = (*judgement.qualifications, *(name for name, applies in holds.items() if applies))
    return dataclasses.replace(judgement, qualifications=qualifications)


def without_value(study: Declaration, terms: Terms, arms: Mapping[str, ArmSummary]) -> list[WithoutValue]:
    """Return the seeds at which a number that a claim compares is not finite, by its name."""
    compared = _compared(terms, arms)
    return join_arms([arm.without_value(study, arm.labels.get(QUANTITY) or str(study.metric)) for arm in compared])


def simple_effects(terms: Terms, arms: Mapping[str, ArmSummary]) -> list[SimpleEffect]:
    """Return the two effects that an interaction compares, in the direction of the claim; none for other claims."""
    if len(terms) != 4:
        return []
    effects, direction = [], terms[0][0]
    for first, second, other in (
        (terms[0][1], terms[1][1], terms[2][1]),
        (terms[2][1], terms[3][1], terms[0][1]),
    ):
        changed = [name for name in first if first[name] != second.get(name)]
        context = {name: label for name, label in first.items() if other.get(name) != label}
        levels = [{name: labels[name] for name in changed} for labels in (first, second)]
        judgement = judge_difference(paired_differences([(direction, first), (-direction, second)], arms))
        effects.append(SimpleEffect(levels[0], levels[1], context, judgement))
    return effects


def contrast_values(terms: Terms, arms: Mapping[str, ArmSummary]) -> list[float | None]:
    """Return a contrast, without its constant, at each seed; None where a run or quantity is missing."""
    compared = _compared(terms, arms)
    if len(compared) < len(terms):
        return []
    columns = zip(*(arm.scores for arm in compared), strict=True)
    weights = [weight for weight, _ in terms]
    return [
        sum(w * s for w, s in zip(weights, column, strict=True) if s is not None) if None not in column else None
        for column in columns
    ]


def diverged_seeds(terms: Terms, arms: Mapping[str, ArmSummary]) -> list[bool]:
    """Return, for each seed with a difference, whether one of the claim's runs diverged."""
    values, compared = contrast_values(terms, arms), _compared(terms, arms)
    if not values:
        return []
    return [
        any(diverged)
        for value, *diverged in zip(values, *(arm.has_diverged for arm in compared), strict=True)
        if value is not None
    ]


def _compared(terms: Terms, arms: Mapping[str, ArmSummary]) -> list[ArmSummary]:
    """The arms and quantities of a contrast that there are, in its order."""
    return [arms[key] for _, labels in terms if (key := key_of(labels)) in arms]


@dataclasses.dataclass(frozen=True)
class JudgedClaim:
    """A declared claim with its differences per seed and the result of its test."""

    text: str
    kind: str
    by: float
    within: float | None
    unit: str
    terms: Terms
    constant: float
    differences: list[float]
    judgement: Judgement
    context: ClaimContext
    declaration: ClaimDeclaration | None
    """Time at which it was declared, and the results that existed then; None for a withdrawn claim."""
    answers: Mapping[str, str] | None = None
    """The sentence by verdict that answers the question of the study."""

    @property
    def is_exploratory(self) -> bool:
        """True if it was declared, or changed, after its data; its verdict confirms nothing."""
        return self.declaration is not None and not self.declaration.is_confirmatory

    @property
    def is_withdrawn(self) -> bool:
        """True if the study declares it no longer."""
        return self.declaration is None


def paired_differences(terms: Terms, arms: Mapping[str, ArmSummary], constant: float = 0.0) -> list[float]:
    """Return the value of a contrast at each seed that has all of its runs or quantities."""
    return [value + constant for value in contrast_values(terms, arms) if value is not None]


def judge_claims(
    study: Declaration,
    arms: Mapping[str, ArmSummary],
    declarations: Sequence[ClaimDeclaration],
    withdrawn: Sequence[tuple[WithdrawnClaim, Sequence[ArmSummary]]],
) -> tuple[list[JudgedClaim], list[JudgedClaim]]:
    """Judge the claims of the study, and those that it declared before their data and withdrew.

    Claims that were declared before their data are one family, with the withdrawn ones; the others are corrected for
    all claims.

    Args:
      study: content of study.json.
      arms: its arms and quantities, by `key_of` their labels.
      declarations: the declaration of each of its claims.
      withdrawn: the withdrawn claims, each with the arms and quantities that it is about.
    """
    claims = [*study.claims, *(former.claim for former, _ in withdrawn)]
    n = len(study.claims)
    measured = [*[arms] * n, *({key_of(arm.labels): arm for arm in compared} for _, compared in withdrawn)]
    differences_of = [
        paired_differences(claim.terms, arms, claim.constant) for claim, arms in zip(claims, measured, strict=True)
    ]
    judgements = [judge_claim(*pair, study.exact) for pair in zip(claims, differences_of, strict=True)]
    is_confirmatory = [declaration.is_confirmatory for declaration in declarations] + [True] * len(withdrawn)
    family = iter(with_verdicts([*itertools.compress(judgements, is_confirmatory)]))
    every = zip(with_verdicts(judgements), is_confirmatory, strict=True)
    decided = [next(family) if in_family else judgement for judgement, in_family in every]
    diverged = [diverged_seeds(claim.terms, compared) for claim, compared in zip(claims, measured, strict=True)]
    kept = [
        [difference for difference, is_lost in zip(*pair, strict=True) if not is_lost]
        for pair in zip(differences_of, diverged, strict=True)
    ]
    without = with_verdicts([judge_claim(*pair, study.exact) for pair in zip(claims, kept, strict=True)])
    declared, judged = [*declarations, *[None] * len(withdrawn)], []
    for i, claim in enumerate(claims):
        context = ClaimContext(
            tuple(simple_effects(claim.terms, measured[i])),
            sum(diverged[i]),
            without[i] if any(diverged[i]) else None,
            claim_cost_ratios(claim.terms, measured[i]),
            tuple(without_value(study, claim.terms, measured[i])),
        )
        judged.append(
            JudgedClaim(
                **asdict(claim) | {"unit": study.unit if claim.unit is None else claim.unit},
                differences=differences_of[i],
                judgement=qualify(decided[i], claim.kind, context),
                context=context,
                declaration=declared[i],
            )
        )
    return judged[: len(declarations)], judged[len(declarations) :]
