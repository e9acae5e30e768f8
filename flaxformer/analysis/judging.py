"""Judging of claims: paired differences, tests, families, and whether each was declared before its data."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.claim_context import ClaimContext, contrast_values, judge_claim, with_context
from flaxformer.analysis.claim_history import ClaimDeclaration, WithdrawnClaim
from flaxformer.statistics.judgement import Judgement, with_verdicts
from flaxformer.store.declaration import Declaration, Terms, key_of


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
    decided, contexts = with_context(study, claims, differences_of, decided, measured)
    judged = [
        JudgedClaim(
            **asdict(claim) | {"unit": study.unit if claim.unit is None else claim.unit},
            differences=differences,
            judgement=judgement,
            context=context,
            declaration=declaration,
        )
        for claim, differences, judgement, context, declaration in zip(
            claims, differences_of, decided, contexts, [*declarations, *[None] * len(withdrawn)], strict=True
        )
    ]
    return judged[: len(declarations)], judged[len(declarations) :]
