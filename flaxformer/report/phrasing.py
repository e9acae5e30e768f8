"""Phrasing of findings, the same in the terminal, the HTML report and the tables."""

import dataclasses
import math
from collections.abc import Iterable

from flaxformer.report import numbers
from flaxformer.report.numbers import p_value
from flaxformer.study.analysis import Analysis, Exploration, JudgedClaim
from flaxformer.study.claim import QUANTITY
from flaxformer.study.statistics import Estimate

MARKS = {"supported": "✓", "refuted": "✗", "inconclusive": "?"}
BETTER = {"validation_loss": -1, "validation_accuracy": 1}
"""Direction that is better, for the metrics that have one."""


def half_width(effect: Estimate) -> float:
    """The uncertainty that an interval says."""
    return effect.high - effect.mean


def interval(effect: Estimate, sign: str = "") -> str:
    """An estimate with its interval, such as "4.007 [3.955, 4.059]"; a fact of the program has none."""
    if effect.n == 0:
        return "–"
    if effect.sd == 0:
        said = numbers.exact(effect.mean, sign)
        rounded = float(said.replace(",", "")) != effect.mean
        return said if rounded else f"exactly {said}"
    if math.isnan(effect.low):
        return f"{numbers.number(effect.mean, sign=sign)} (one seed, no interval)"
    mean, low, high = numbers.numbers((effect.mean, effect.low, effect.high), half_width(effect), sign)
    return f"{mean} [{low}, {high}]"


def number_claimed(claim: JudgedClaim) -> float | None:
    """The number that one arm or quantity is compared with; None where arms are compared with each other."""
    if len(claim.terms) > 1:
        return None
    return 0.0 - claim.constant / claim.terms[0][0]


def measured(claim: JudgedClaim) -> Estimate:
    """Return what the claim is about: the value itself where it is compared with a number, else the effect."""
    effect, reference = claim.judgement.effect, number_claimed(claim)
    if reference is None:
        return effect
    sign = claim.terms[0][0]
    ends = sorted((reference + sign * effect.low, reference + sign * effect.high))
    return dataclasses.replace(effect, mean=reference + sign * effect.mean, low=ends[0], high=ends[1])


def values(claim: JudgedClaim) -> list[float]:
    """Return the values of which `measured` is the mean, one per seed."""
    reference = number_claimed(claim)
    if reference is None:
        return claim.differences
    return [reference + claim.terms[0][0] * difference for difference in claim.differences]


def region(claim: JudgedClaim) -> tuple[float, float]:
    """Between which values of `measured` the claim holds."""
    centre = number_claimed(claim)
    if claim.within is not None:
        return (centre or 0.0) - claim.within, (centre or 0.0) + claim.within
    if centre is not None and claim.kind == "lower":
        return -math.inf, centre - claim.by
    return (centre or 0.0) + claim.by, math.inf


def claimed(claim: JudgedClaim) -> str:
    """Return what is claimed of `measured`, such as "1 ± 0.1", "above 0.5" or "within ±0.02"."""
    centre, (low, high) = number_claimed(claim), region(claim)
    if claim.within is not None:
        margin = f"±{'' if centre is None else ' '}{numbers.claimed(claim.within)}"
        return f"within {margin}" if centre is None else f"{numbers.claimed(centre)} {margin}"
    return f"below {numbers.claimed(high)}" if math.isfinite(high) else f"above {numbers.claimed(low)}"


def effect(claim: JudgedClaim) -> str:
    """Return what was measured, with its interval and unit."""
    sign = "+" if number_claimed(claim) is None else ""
    return " ".join(filter(None, (interval(measured(claim), sign), claim.unit)))


def finding(claim: JudgedClaim) -> str:
    """A claim's result in one clause."""
    judged = claim.judgement
    if judged.effect.n == 0:
        return "no seed has all that it needs"
    said = [f"{effect(claim)}, claimed {claimed(claim)}"]
    if judged.effect.n > 1:
        if claim.kind != "equal":
            said.append(f"{judged.agreeing} of {judged.effect.n} seeds agree")
        said.append(f"p {p_value(judged.p_holm)} after Holm")
    return "; ".join(said)


def verdict(analysis: Analysis) -> str:
    """The answer in one sentence: a single claim's own, or how many hold, and which do not."""
    claims, gone = analysis.claims, analysis.missing
    late = f"With {gone} run{'s' if gone != 1 else ''} missing: " if gone else ""
    if not claims:
        return f"{late}No claim was declared; the numbers stand for themselves."
    if len(claims) == 1:
        [claim] = claims
        return f"{late}{claim.judgement.verdict.capitalize()}: {_stripped(claim.text)} ({finding(claim)})."
    named = {word: [c.text for c in claims if c.judgement.verdict == word] for word in MARKS}
    held, n = len(named["supported"]), len(claims)
    counted = f"all {n} claims are" if held == n else f"{held or 'none'} of {n} claims {'is' if held < 2 else 'are'}"
    others = [f"{word}: {', and '.join(map(_stripped, named[word]))}" for word in named if word != "supported"]
    said = "; ".join([f"{counted} supported", *(text for text in others if not text.endswith(": "))])
    return f"{late}{said[0].upper()}{said[1:]}."


def _stripped(text: str) -> str:
    return text.rstrip(". ")


def labels(items: dict[str, str]) -> str:
    """Levels such as "norm pre, warmup none"."""
    return ", ".join(f"{name} {label}" for name, label in items.items())


def metric(study: dict) -> str:
    """The metric's name, with its unit."""
    name, unit = study["metric"].replace("_", " "), study["unit"].removeprefix("of ")
    return f"{name} ({unit})" if unit and unit not in name else name


def surprise(one: Exploration, study: dict) -> str:
    """An undeclared contrast in one sentence."""
    effect, where = one.judgement.effect, f"with {labels(one.context)}, " if one.context else ""
    words, above = ("lower", "higher"), effect.mean > 0
    if good := BETTER.get(study["metric"], 0):
        words = ("worse", "better")
        above = effect.mean * good > 0
    against = ", against the direction around the baseline" if one.opposite else ""
    alone = f"a hint, p {p_value(one.judgement.p)} alone, " if one.hint else "p "
    measure = " ".join(filter(None, (interval(effect, "+"), study["unit"])))
    return (
        f"{where}{one.axis} {one.label} is {words[above]} than {one.reference}{against}: "
        f"{measure}, {one.judgement.agreeing} of {effect.n} seeds agree, "
        f"{alone}{p_value(one.judgement.p_holm)} after Holm"
    )


def exploratory_findings(analysis: Analysis, at_most: int = 5) -> list[str]:
    """The first undeclared findings, and how many more there are."""
    said = [surprise(one, analysis.study) for one in analysis.exploratory_findings]
    more = len(said) - at_most
    return said[:at_most] + ([f"and {more} more, in the report's last table"] if more > 0 else [])


def references(analysis: Analysis) -> str:
    """Return the losses of count models, such as "unigram 3.140, bigram 2.429"."""
    return ", ".join(f"{name} {loss:.3f}" for name, loss in analysis.study["references"].items())


def seeds(n: int) -> str:
    """A number of seeds."""
    return f"{n} seed{'s' if n != 1 else ''}"


def fixed(analysis: Analysis) -> Iterable[str]:
    """Return in clauses how the answer was reached: runs, seeds and parameters; what diverged; what failed."""
    study = analysis.study
    if study["kind"] == "probe":
        own = sorted({one.estimate.n for one in analysis.quantities})
        yield f"{len(analysis.quantities)} quantities, measured without training"
        yield "exact" if analysis.exact else f"{max(own, default=0)} of {seeds(len(study['seeds']))}"
        return
    diverged, finished, low, high = analysis.divergence
    yield f"{finished - len(analysis.stopped)} of {len(study['trials'])} runs, {len(study['seeds'])} paired seeds"
    if analysis.stopped:
        yield f"{len(analysis.stopped)} stopped early"
    yield f"{study['parameters']:,} parameters"
    if finished:
        yield f"{diverged} diverged (rate {diverged / finished:.0%}, 95 % interval {low:.0%} to {high:.0%})"
    if analysis.failed:
        yield f"{len(analysis.failed)} failed: {analysis.failed[0]['cause']}"


def arm(names: dict[str, str]) -> str:
    """An arm or a quantity by its levels alone, such as "pre · none"."""
    return names.get(QUANTITY) or " · ".join(names.values()) or "baseline"
