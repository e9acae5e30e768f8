"""Verdicts in words: of a claim, with its qualifications and the time of its declaration, and of a whole study."""

import itertools
from collections.abc import Iterable, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim, SimpleEffect
from flaxformer.analysis.sweep import Sweep
from flaxformer.report import costs, numbers, phrasing
from flaxformer.report.numbers import number, p_value
from flaxformer.report.phrasing import MARKS, MOST_LINES, finding, labels, point, score, with_labels
from flaxformer.statistics.judgement import FEWEST_SEEDS, Judgement, Qualification
from flaxformer.store.declaration import Declaration
from flaxformer.system.wording import count_of

STYLES = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}
"""Colours of verdicts in a terminal."""
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


def qualified_verdict(claim: JudgedClaim) -> str:
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


def qualifications(claim: JudgedClaim) -> list[str]:
    """The qualifications of a claim in plain words."""
    judged, without = claim.judgement, claim.context.without_diverged
    known = {
        "seeds": count_of(judged.effective, "effective seed"),
        "distinct": str(judged.distinct),
        "n": str(judged.effect.n),
        "fewest": str(FEWEST_SEEDS),
        "outlier": _farthest(claim),
        "cost": costs.ratios(claim.context.cost_ratios),
        "direction": direction(claim),
        "without_value": "; ".join(gap.sentence for gap in claim.context.without_value),
        "without": without.verdict if without else "inconclusive",
    }
    return [SENTENCES[qualification].format(**known) for qualification in judged.qualifications]


def _farthest(claim: JudgedClaim) -> str:
    """The value that is farthest from the mean."""
    values = phrasing.values(claim)
    mean = phrasing.measured_effect(claim).mean
    return number(max(values, key=lambda value: abs(value - mean))) if values else "–"


def qualified_claims(claims: Iterable[JudgedClaim]) -> list[str]:
    """The claims with qualifications, each with all of them."""
    qualified = [(claim.text, qualifications(claim)) for claim in claims]
    return [f"{text}: {'; '.join(remarks)}." for text, remarks in qualified if remarks]


def simple_effect(effect: SimpleEffect, unit: str) -> str:
    """One of the two effects that an interaction compares, in one clause; positive in the direction of the claim."""
    measured = " ".join(filter(None, (phrasing.interval(effect.judgement.effect, "+"), unit)))
    return f"{contrast(effect)}{with_labels(effect.context)}: {measured}"


def contrast(effect: SimpleEffect) -> str:
    """The two levels that a simple effect compares, such as "warmup 100 against none"."""
    if len(effect.first) == 1:
        [(name, label)] = effect.first.items()
        return f"{name} {label} against {effect.second[name]}"
    return f"{labels(effect.first)} against {labels(effect.second)}"


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


def verdict_of(claim: JudgedClaim) -> str:
    """The verdict of a claim; "exploratory" before it if the claim was declared after its data, or "withdrawn".

    Of an interaction whose effects are not both in the claimed direction, it is that of their difference.
    """
    before = "withdrawn: " if claim.is_withdrawn else "exploratory: " if claim.is_exploratory else ""
    return before + qualified_verdict(claim)


def marked_verdict(claim: JudgedClaim) -> tuple[str, str]:
    """The verdict of a claim with its mark, and its style in a terminal."""
    verdict = claim.judgement.verdict
    if claim.is_exploratory or claim.is_withdrawn:
        return f"· {verdict_of(claim)}", "dim"
    return f"{MARKS[verdict]} {verdict_of(claim)}", STYLES[verdict]


def when_declared(claim: JudgedClaim) -> str:
    """Time of a claim's declaration relative to its data, to follow "declared"."""
    declaration = claim.declaration
    if declaration is None:  # withdrawn
        return "before its data, and withdrawn after"
    if not declaration.is_intact:
        return "at an unknown time"
    if not declaration.is_confirmatory and 0 < declaration.existing <= declaration.declared:
        when = f"after {declaration.existing} of {count_of(declaration.declared, 'result')}"
    elif not declaration.is_confirmatory:
        when = f"after results at {declaration.existing_seeds} of {count_of(declaration.seeds, 'seed')}"
    elif declaration.existing:
        when = f"before its data ({declaration.existing} of its {declaration.declared} results existed)"
    else:
        when = "before its data"
    pilots = (f"{count_of(declaration.pilots, 'pilot result')} at other seeds",) if declaration.pilots else ()
    return "; ".join((when, *pilots, *declaration.remarks))


def verdict(analysis: Analysis) -> str:
    """Return the answer in a few sentences: verdicts, or the best values of a sweep, and further sets of seeds.

    Missing runs come first.
    """
    missing = f"With {count_of(analysis.missing, 'run')} missing: " if analysis.missing else ""
    further = "".join(f" Withdrawn after its data: {_finding_of(claim)}." for claim in analysis.withdrawn)
    further += f" {analysis.further_seeds}." if analysis.further_seeds.sets else ""
    if analysis.claims:
        return answer(analysis.claims) + missing + _verdict_of_claims(analysis.claims) + further
    if analysis.sweeps:
        return missing + " ".join(map(_answer, analysis.sweeps, itertools.repeat(analysis.study))) + further
    return f"{missing}No claim is declared; the tables have the results.{further}"


def answer(claims: Sequence[JudgedClaim]) -> str:
    """The sentence by which the first claim with `answers` answers the study's question, and a space; else nothing.

    A claim that was declared after its data answers nothing.
    """
    answered = [claim for claim in claims if claim.answers and not claim.is_exploratory][:1]
    texts = [[(claim.answers or {})[claim.judgement.verdict], _but(claim)] for claim in answered]
    return "".join(f"{text} " for sentences in texts for text in sentences if text)


def _but(claim: JudgedClaim) -> str:
    """A sentence on what a supported interaction does not say; empty for others."""
    return f"But {direction(claim)}." if direction(claim) else ""


def _verdict_of_claims(claims: Sequence[JudgedClaim]) -> str:
    """A single claim's verdict, or how many claims are supported and which are not; then the exploratory ones."""
    confirmatory, exploratory = ([c for c in claims if c.is_exploratory is kind] for kind in (False, True))
    sentences = [_verdict_of_family(confirmatory)] if confirmatory else ["No claim was declared before its data."]
    sentences += [f"Exploratory, declared after its data: {_finding_of(claim)}." for claim in exploratory]
    return " ".join(sentences)


def _finding_of(claim: JudgedClaim) -> str:
    clauses = filter(None, (finding(claim), direction(claim)))
    return f"{_without_stop(claim.text)} ({qualified_verdict(claim)}: {'; '.join(clauses)})"


def _verdict_of_family(claims: Sequence[JudgedClaim]) -> str:
    if len(claims) == 1:
        [claim] = claims
        text = f"{verdict_of(claim).capitalize()}: {_without_stop(claim.text)} ({finding(claim)})."
        return " ".join(filter(None, (text, _but(claim))))
    texts = {word: [_without_stop(c.text) for c in claims if c.judgement.verdict == word] for word in MARKS}
    supported, n = len(texts["supported"]), len(claims)
    remarks = [f"“{_without_stop(claim.text)}”: {direction(claim)}." for claim in claims if direction(claim)]
    if supported == n:
        return " ".join((f"All {n} claims are supported.", *remarks))
    clauses = [f"{supported or 'None'} of {n} claims {'is' if supported < 2 else 'are'} supported"]
    clauses += [f"{word}: {', and '.join(texts[word])}" for word in texts if word != "supported" and texts[word]]
    return " ".join((f"{'; '.join(clauses)}.", *remarks))


def _without_stop(text: str) -> str:
    return text.rstrip(". ")


def _answer(sweep: Sweep, study: Declaration) -> str:
    """The best values of a sweep in one sentence: each of a few lines, or their range."""
    lines = [(line, line.best) for line in sweep.lines if line.best is not None]
    what = f"Best {' and '.join(sweep.names)}"
    if not lines:
        return f"{what}: no arm was trained to the end."
    if len(lines) <= MOST_LINES:
        texts = [f"{point(best)}{with_labels(line.labels)} ({score(best.arm.estimate, study)})" for line, best in lines]
        return f"{what}: {', '.join(texts)}."
    ends = [[best.numbers[name] for _, best in lines] for name in sweep.names]
    ranges = [f"{numbers.round_digits(min(values))} to {numbers.round_digits(max(values))}" for values in ends]
    return f"{what}: {' and '.join(ranges)} in {len(lines)} arms; the table has the value of each."


def worst_verdict(analysis: Analysis) -> str:
    """The verdict that colours the answer: refuted or inconclusive where a claim is, else supported."""
    verdicts = {claim.judgement.verdict for claim in analysis.claims if not claim.is_exploratory}
    return next((verdict for verdict in ("refuted", "inconclusive", "supported") if verdict in verdicts), "")
