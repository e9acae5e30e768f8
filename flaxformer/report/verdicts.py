"""Verdicts in words: of a claim, with the time of its declaration, and of a whole study in one sentence."""

import itertools
from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.sweep import Sweep
from flaxformer.report import directions, numbers
from flaxformer.report.directions import direction
from flaxformer.report.phrasing import MARKS, MOST_LINES, finding, point, score, with_labels
from flaxformer.store.declaration import Declaration
from flaxformer.system.wording import count_of


def verdict_of(claim: JudgedClaim) -> str:
    """The verdict of a claim; "exploratory" before it if the claim was declared after its data.

    Of an interaction whose effects are not both in the claimed direction, it is that of their difference.
    """
    found = directions.verdict(claim)
    return f"exploratory: {found}" if claim.is_exploratory else found


def when_declared(claim: JudgedClaim) -> str:
    """Time of a claim's declaration relative to its data, to follow "declared"."""
    own = claim.declaration
    if own is None:
        return "before its data, and withdrawn after"
    if not own.is_intact:
        return "at an unknown time"
    if not own.is_confirmatory and 0 < own.existing <= own.declared:
        found = f"after {own.existing} of {count_of(own.declared, 'result')}"
    elif not own.is_confirmatory:
        found = f"after results at {own.existing_seeds} of {count_of(own.seeds, 'seed')}"
    elif own.existing:
        found = f"before its data ({own.existing} of its {own.declared} results existed)"
    else:
        found = "before its data"
    pilots = (f"{count_of(own.pilots, 'pilot result')} at other seeds",) if own.pilots else ()
    return "; ".join((found, *pilots, *own.remarks))


def verdict(analysis: Analysis) -> str:
    """Return the answer in a few sentences: verdicts, or the best values of a sweep, and further sets of seeds.

    Missing runs come first.
    """
    missing = f"With {count_of(analysis.missing, 'run')} missing: " if analysis.missing else ""
    further = f" {analysis.further_seeds}." if analysis.further_seeds.sets else ""
    if analysis.claims:
        return answer(analysis.claims) + missing + _verdict_of_claims(analysis.claims, analysis.withdrawn) + further
    if analysis.sweeps:
        return missing + " ".join(map(_answer, analysis.sweeps, itertools.repeat(analysis.study))) + further
    return f"{missing}No claim was declared; the tables have the results.{further}"


def answer(claims: Sequence[JudgedClaim]) -> str:
    """The sentence by which the first claim with `answers` answers the study's question, and a space; else nothing.

    A claim that was declared after its data answers nothing.
    """
    answered = [claim for claim in claims if claim.answers and not claim.is_exploratory][:1]
    texts = [[(claim.answers or {})[claim.judgement.verdict], _but(claim)] for claim in answered]
    return "".join(f"{text} " for own in texts for text in own if text)


def _but(claim: JudgedClaim) -> str:
    """A sentence on what a supported interaction does not say; empty for others."""
    return f"But {direction(claim)}." if direction(claim) else ""


def _verdict_of_claims(claims: Sequence[JudgedClaim], withdrawn: Sequence[JudgedClaim]) -> str:
    """A single claim's verdict, or how many claims are supported and which are not; then those that confirm nothing."""
    confirmatory, exploratory = ([c for c in claims if c.is_exploratory is kind] for kind in (False, True))
    parts = [_verdict_of_family(confirmatory)] if confirmatory else ["No claim was declared before its data."]
    parts += [f"Exploratory, declared after its data: {_finding_of(claim)}." for claim in exploratory]
    parts += [f"Withdrawn after its data: {_finding_of(claim)}." for claim in withdrawn]
    return " ".join(parts)


def _finding_of(claim: JudgedClaim) -> str:
    parts = filter(None, (finding(claim), direction(claim)))
    return f"{_without_stop(claim.text)} ({directions.verdict(claim)}: {'; '.join(parts)})"


def _verdict_of_family(claims: Sequence[JudgedClaim]) -> str:
    if len(claims) == 1:
        [claim] = claims
        text = f"{verdict_of(claim).capitalize()}: {_without_stop(claim.text)} ({finding(claim)})."
        return " ".join(filter(None, (text, _but(claim))))
    texts = {word: [_without_stop(c.text) for c in claims if c.judgement.verdict == word] for word in MARKS}
    supported, n = len(texts["supported"]), len(claims)
    remarks = [f"“{_without_stop(one.text)}”: {direction(one)}." for one in claims if direction(one)]
    if supported == n:
        return " ".join((f"All {n} claims are supported.", *remarks))
    parts = [f"{supported or 'None'} of {n} claims {'is' if supported < 2 else 'are'} supported"]
    parts += [f"{word}: {', and '.join(texts[word])}" for word in texts if word != "supported" and texts[word]]
    return " ".join((f"{'; '.join(parts)}.", *remarks))


def _without_stop(text: str) -> str:
    return text.rstrip(". ")


def _answer(sweep: Sweep, study: Declaration) -> str:
    """The best values of a sweep in one sentence: each of a few lines, or their range."""
    lines = [(line, line.best) for line in sweep.lines if line.best is not None]
    what = f"Best {' and '.join(sweep.names)}"
    if not lines:
        return f"{what}: no arm was trained to the end."
    if len(lines) <= MOST_LINES:
        found = [f"{point(best)}{with_labels(line.labels)} ({score(best.arm.estimate, study)})" for line, best in lines]
        return f"{what}: {', '.join(found)}."
    ends = [[best.numbers[name] for _, best in lines] for name in sweep.names]
    ranges = [f"{numbers.round_digits(min(own))} to {numbers.round_digits(max(own))}" for own in ends]
    return f"{what}: {' and '.join(ranges)} in {len(lines)} arms; the table has the value of each."
