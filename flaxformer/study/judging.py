"""Judging of claims: paired differences, tests, families, and whether each was declared before its data."""

import dataclasses
from collections.abc import Mapping

from flaxformer.digests import JsonObject
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.study.arms import ArmSummary
from flaxformer.study.claim import Labels
from flaxformer.study.claim_context import ClaimContext, judge_claim, with_context
from flaxformer.study.claim_history import ClaimDeclaration, claim_declarations, withdrawn_claims
from flaxformer.study.statistics import Judgement, with_verdicts

Terms = list[tuple[float, Labels]]


DECLARED = {"text", "kind", "by", "within", "unit", "terms", "constant", "answers"}
"""Fields of a claim in a declaration; others, of another version, are ignored."""


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


def key_of(labels: Labels) -> str:
    """Return the labels in an order of their own, as a key."""
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


def paired_differences(terms: Terms, arms: Mapping[str, ArmSummary], constant: float = 0.0) -> list[float]:
    """Return the value of a contrast at each seed that has all of its runs or quantities."""
    if not all(key_of(labels) in arms for _, labels in terms):
        return []
    weights = [weight for weight, _ in terms]
    columns = zip(*(arms[key_of(labels)].scores for _, labels in terms), strict=True)
    return [
        sum(w * s for w, s in zip(weights, column, strict=True)) + constant for column in columns if None not in column
    ]


def judge_claims(
    study: JsonObject, arms: dict[str, ArmSummary], log: DeclarationLog, faults: list[str]
) -> tuple[list[JudgedClaim], list[JudgedClaim]]:
    """Judge the claims of the study, and those that it declared before their data and withdrew.

    Claims that were declared before their data are one family, with the withdrawn ones; the others are corrected for
    all claims.
    """
    declarations, withdrawn = claim_declarations(study, log, faults), withdrawn_claims(study, log)
    claims = [*((claim, study["metric"]) for claim in study["claims"]), *withdrawn]
    differences_of, judgements, exact = [], [], study.get("exact", False)
    for claim, metric in claims:
        has_results = metric == study["metric"]
        differences = paired_differences(claim["terms"], arms, claim["constant"]) if has_results else []
        differences_of.append(differences)
        judgements.append(judge_claim(claim, differences, exact))
    is_confirmatory = [one.is_confirmatory for one in declarations] + [True] * len(withdrawn)
    family = iter(with_verdicts([one for one, own in zip(judgements, is_confirmatory, strict=True) if own]))
    every = zip(with_verdicts(judgements), is_confirmatory, strict=True)
    decided = [next(family) if own else one for one, own in every]
    known = [claim if metric == study["metric"] else claim | {"terms": []} for claim, metric in claims]
    decided, contexts = with_context(study, known, differences_of, decided, arms.values())
    judged = [
        JudgedClaim(
            **{"unit": study["unit"]} | {name: value for name, value in claim.items() if name in DECLARED},
            differences=differences,
            judgement=judgement,
            context=context,
            declaration=declaration,
        )
        for (claim, _), differences, judgement, context, declaration in zip(
            claims, differences_of, decided, contexts, [*declarations, *[None] * len(withdrawn)], strict=True
        )
    ]
    return judged[: len(declarations)], judged[len(declarations) :]
