"""Sentences that stand beside a verdict: its qualifications, simple effects, and the test without diverged seeds."""

from collections.abc import Iterable

from flaxformer.analysis.claim_context import SimpleEffect
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import costs, directions, phrasing
from flaxformer.report.numbers import number, p_value
from flaxformer.statistics.judgement import FEWEST_SEEDS, Judgement, Qualification
from flaxformer.system.wording import count_of

SENTENCES: dict[Qualification, str] = {
    "too few seeds": "no verdict: {seeds}, at least {fewest} are needed",
    "few seeds": "{seeds} only: the verdict relies on the form of their distribution",
    "zero variance": "all differences are equal: the number may not depend on the seed, or the metric is at its limit",
    "ties": "ties: {n} seeds have {distinct} different values",
    "skewed": "the differences are skewed, so the interval is widened on the side of the long tail",
    "withheld for skewness": "Student's t-test would decide; skewness towards the bound withholds the verdict",
    "outlier": "one seed is far from the others (at {outlier}); look at it before you rely on the verdict",
    "withheld by signs": "the sign-flip test does not agree, which withholds the verdict",
    "not finite": "{without_value}",
    "simple effects": "{direction}",
    "divergence decides": "diverged runs decide: without them the verdict is {without}",
    "unequal cost": "the arms differ in cost: {cost}",
}


def sentences(claim: JudgedClaim) -> list[str]:
    """The qualifications of a claim in plain words."""
    judged, without = claim.judgement, claim.context.without_diverged
    known = {
        "seeds": count_of(judged.effective, "effective seed"),
        "distinct": str(judged.distinct),
        "n": str(judged.effect.n),
        "fewest": str(FEWEST_SEEDS),
        "outlier": _farthest(claim),
        "cost": costs.ratios(claim.context.cost_ratios),
        "direction": directions.direction(claim),
        "without_value": "; ".join(one.sentence for one in claim.context.without_value),
        "without": without.verdict if without else "inconclusive",
    }
    return [SENTENCES[one].format(**known) for one in judged.qualifications]


def _farthest(claim: JudgedClaim) -> str:
    """The value that is farthest from the mean."""
    values = phrasing.values(claim)
    mean = phrasing.measured_effect(claim).mean
    return number(max(values, key=lambda value: abs(value - mean))) if values else "–"


def by_claim(claims: Iterable[JudgedClaim]) -> list[str]:
    """The claims with qualifications, each with all of them."""
    found = [(claim.text, sentences(claim)) for claim in claims]
    return [f"{text}: {'; '.join(own)}." for text, own in found if own]


def simple_effect(one: SimpleEffect, unit: str) -> str:
    """One of the two effects that an interaction compares, in one clause; positive in the direction of the claim."""
    measured = " ".join(filter(None, (phrasing.interval(one.judgement.effect, "+"), unit)))
    return f"{contrast(one)}{phrasing.with_labels(one.context)}: {measured}"


def contrast(one: SimpleEffect) -> str:
    """The two levels that a simple effect compares, such as "warmup 100 against none"."""
    if len(one.first) == 1:
        [(name, label)] = one.first.items()
        return f"{name} {label} against {one.second[name]}"
    return f"{phrasing.labels(one.first)} against {phrasing.labels(one.second)}"


def without_diverged(claim: JudgedClaim) -> str:
    """The effect without the seeds that diverged; empty if none did."""
    again: Judgement | None = claim.context.without_diverged
    if again is None:
        return ""
    left = f"without {count_of(claim.context.diverged, 'seed')} with a diverged run"
    if again.effect.n == 0:
        return f"{left}: none is left"
    p = f", p {p_value(again.p_holm)} after Holm" if again.can_decide else ""
    return f"{left}: {phrasing.effect(claim, again.effect)}{p} ({again.verdict})"
