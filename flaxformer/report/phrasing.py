"""Phrasing of findings, the same in the terminal, the HTML report and the tables."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from flaxformer.analysis.analysis import Analysis, Exploration
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.sweep import Sweep, SweepLine, SweepPoint
from flaxformer.report import numbers
from flaxformer.report.numbers import p_value
from flaxformer.statistics.estimates import Estimate
from flaxformer.store.declaration import QUANTITY, WITH, WITHOUT, Declaration, Labels
from flaxformer.study.halving import direction_of
from flaxformer.system.wording import count_of, join_words

MARKS = {"supported": "✓", "refuted": "✗", "inconclusive": "?"}
MOST_LINES = 4
"""Number of lines of a sweep of which the answer gives each best value."""


def half_width(effect: Estimate) -> float:
    """Half the width of an interval."""
    return (effect.high - effect.low) / 2


def interval(effect: Estimate, sign: str = "") -> str:
    """An estimate with its interval, such as "4.007 [3.955, 4.059]"; a number without variance has none."""
    if effect.n == 0:
        return "–"
    if effect.sd == 0:
        text = numbers.exact(effect.mean, sign)
        is_rounded = float(text.replace(",", "")) != effect.mean
        return text if is_rounded else f"exactly {text}"
    if math.isnan(effect.low):
        return f"{numbers.number(effect.mean, sign=sign)} (one seed, no interval)"
    mean, low, high = numbers.numbers((effect.mean, effect.low, effect.high), half_width(effect), sign)
    return f"{mean} [{low}, {high}]"


def number_claimed(claim: JudgedClaim) -> float | None:
    """The number that one arm or quantity is compared with; None where arms are compared with each other."""
    if len(claim.terms) > 1:
        return None
    return 0.0 - claim.constant / claim.terms[0][0]


def measured_effect(claim: JudgedClaim, effect: Estimate | None = None) -> Estimate:
    """Return the estimate that a claim is about: the value itself if it is compared with a number, else the effect.

    Its interval is the tested one. Another effect may be given, such as that without diverged runs.
    """
    effect, reference = effect or claim.judgement.effect, number_claimed(claim)
    if reference is None:
        return effect
    sign = claim.terms[0][0]
    ends = sorted((reference + sign * effect.low, reference + sign * effect.high))
    return dataclasses.replace(effect, mean=reference + sign * effect.mean, low=ends[0], high=ends[1])


def values(claim: JudgedClaim) -> list[float]:
    """Return the value at each seed, whose mean is `measured`."""
    reference = number_claimed(claim)
    if reference is None:
        return claim.differences
    return [reference + claim.terms[0][0] * difference for difference in claim.differences]


def region(claim: JudgedClaim) -> tuple[float, float]:
    """Return the interval of values of `measured` for which the claim holds."""
    centre = number_claimed(claim)
    if claim.within is not None:
        return (centre or 0.0) - claim.within, (centre or 0.0) + claim.within
    if centre is not None and claim.kind == "lower":
        return -math.inf, centre - claim.by
    return (centre or 0.0) + claim.by, math.inf


def claim_text(claim: JudgedClaim) -> str:
    """The region of `measured` that is claimed, such as "1 ± 0.1", "above 0.5" or "within ±0.02"."""
    centre, (low, high) = number_claimed(claim), region(claim)
    if claim.within is not None:
        margin = f"±{'' if centre is None else ' '}{numbers.exact(claim.within)}"
        return f"within {margin}" if centre is None else f"{numbers.exact(centre)} {margin}"
    return f"below {numbers.exact(high)}" if math.isfinite(high) else f"above {numbers.exact(low)}"


def effect(claim: JudgedClaim, estimate: Estimate | None = None) -> str:
    """The measured effect or value, with the interval that is tested (95 %, of an equality 90 %) and its unit."""
    sign, measured = "+" if number_claimed(claim) is None else "", measured_effect(claim, estimate)
    level = "(90 %)" if claim.within is not None and measured.high > measured.low else ""
    return " ".join(filter(None, (interval(measured, sign), claim.unit, level)))


def finding(claim: JudgedClaim) -> str:
    """A claim's result in one clause."""
    judged = claim.judgement
    n = judged.effect.n
    if n == 0 and claim.context.without_value:
        names = join_words([gap.name for gap in claim.context.without_value])
        return f"no seed has a finite {names} in every run compared"
    if n == 0:
        return "no seed has all the runs that the claim compares"
    clauses = [f"{effect(claim)}, claimed {claim_text(claim)}"]
    if n > 1:
        clauses.append(f"holds at {judged.holding} of {count_of(n, 'seed')}")
        if not judged.effect.sd:
            clauses.append("no test, as all differences are equal")
        elif judged.can_decide:  # else, a qualification says that there is no verdict
            clauses.append(f"p {p_value(judged.p_holm)} after Holm")
    return "; ".join(clauses)


def point(sweep_point: SweepPoint) -> str:
    """The numbers of a point, with their names where there are several."""
    if len(sweep_point.numbers) == 1:
        [value] = sweep_point.numbers.values()
        return numbers.round_digits(value)
    return ", ".join(f"{name} {numbers.round_digits(value)}" for name, value in sweep_point.numbers.items())


def optimum(line: SweepLine) -> str:
    """The interpolated optimum of a line with its interval, "above" or "below" its bounded end, or "–"."""
    vertex, tried = line.optimum, [min(point.numbers.values()) for point in line.points]
    if vertex is None:
        return "–"
    if math.isnan(vertex.low):
        is_inside = min(tried) <= vertex.value <= max(tried)
        return f"{numbers.round_digits(vertex.value)} (one seed, no interval)" if is_inside else "not determined"
    low, high = numbers.round_digits(vertex.low, 2), numbers.round_digits(vertex.high, 2)
    if vertex.low > 0 and math.isfinite(vertex.high) and min(tried) <= vertex.value <= max(tried):
        return f"{numbers.round_digits(vertex.value)} [{low}, {high}]"
    if vertex.low > 0 and vertex.value > min(tried):
        return f"above {low}"
    return f"below {high}" if math.isfinite(vertex.high) and vertex.value < max(tried) else "not determined"


def edge(sweep: Sweep, line: SweepLine) -> str:
    """A remark where the best value is the smallest or the largest that was tried."""
    names = [name for name in sweep.names if line.is_edge(name)]
    if not names or line.best is None:
        return ""
    ends = [
        "smallest" if line.best.numbers[name] == min(point.numbers[name] for point in line.points) else "largest"
        for name in names
    ]
    if len(sweep.names) == 1:
        return f"the {ends[0]} tried"
    return ", ".join(f"{name} the {end} tried" for name, end in zip(names, ends, strict=True))


def sweep_findings(analysis: Analysis, sweeps: Sequence[Sweep] | None = None) -> list[str]:
    """The best value of each line in a sentence each, of the given sweeps or of all."""
    chosen = analysis.sweeps if sweeps is None else sweeps
    return [_sweep_finding(sweep, line, analysis.study) for sweep in chosen for line in sweep.lines]


def first_sweep_findings(analysis: Analysis, at_most: int = 20) -> list[str]:
    """The best value of each line, of the first lines, and how many more there are."""
    findings = [(sweep, line) for sweep in analysis.sweeps for line in sweep.lines]
    shown = [_sweep_finding(sweep, line, analysis.study) for sweep, line in findings[:at_most]]
    more = len(findings) - at_most
    return shown + ([f"and {more:,} more, in the report's tables of best values"] if more > 0 else [])


def _sweep_finding(sweep: Sweep, line: SweepLine, study: Declaration) -> str:
    where = f"{labels(line.labels)}: " if line.labels else ""
    if line.best is None:
        return f"{where}none of {count_of(len(line.points), 'value')} was trained to the end"
    what = "best point" if len(sweep.names) > 1 else f"best {sweep.names[0]}"
    remark = f" ({edge(sweep, line)})" if edge(sweep, line) else ""
    between = f", optimum {optimum(line)}" if line.optimum else ""
    tried = count_of(len(line.points), "value")
    return f"{where}{what} {point(line.best)}{remark} of {tried}{between}; {score(line.best.arm.estimate, study)}"


def labels(items: Labels) -> str:
    """Levels such as "norm pre, warmup none"."""
    return ", ".join(f"{name} {label}" for name, label in items.items())


def with_labels(items: Labels) -> str:
    """Levels after " with ", or nothing."""
    return f" with {labels(items)}" if items else ""


def metric(study: Declaration) -> str:
    """The metric's name, with its unit."""
    name, unit = study.metric.replace("_", " "), study.unit.removeprefix("of ")
    return f"{name} ({unit})" if unit and unit not in name else name


def score(estimate: Estimate, study: Declaration) -> str:
    """The metric's name and its estimate with interval and unit."""
    name, unit = study.metric.replace("_", " "), study.unit
    return " ".join(filter(None, (name, interval(estimate), "" if unit.removeprefix("of ") in name else unit)))


def exploratory_finding(contrast: Exploration, study: Declaration) -> str:
    """A contrast that no claim is about, in one sentence."""
    effect, where = contrast.judgement.effect, f"with {labels(contrast.context)}, " if contrast.context else ""
    comparison = compare(effect.mean, study)
    opposite = ", opposite to the effect at the baseline" if contrast.is_opposite else ""
    tested = f"p {p_value(contrast.judgement.p_holm)} after Holm"
    if contrast.is_weak_signal:
        tested = f"weak signal, false discovery rate {p_value(contrast.p_discovery)}, {tested}"
    measure = " ".join(filter(None, (interval(effect, "+"), study.unit)))
    return (
        f"{where}{contrast.axis} {contrast.label} is {comparison} than {contrast.reference}{opposite}: {measure}, "
        f"{contrast.judgement.agreeing} of {count_of(effect.n, 'seed')} agree, {tested}"
    )


def compare(difference: float, study: Declaration) -> str:
    """Return "better" or "worse" for a difference of a metric with a direction, else "higher" or "lower"."""
    goal = direction_of(study.metric, study.goal)
    if goal is None:
        return "higher" if difference > 0 else "lower"
    return "better" if (difference > 0) == (goal == "higher") else "worse"


def exploratory_findings(analysis: Analysis, at_most: int = 5) -> list[str]:
    """The first exploratory findings, and how many more there are."""
    findings = analysis.exploratory_findings
    sentences = [exploratory_finding(contrast, analysis.study) for contrast in findings[:at_most]]
    more = len(findings) - at_most
    return sentences + ([f"and {more} more, in the report's table of contrasts"] if more > 0 else [])


def effects(analysis: Analysis) -> str:
    """Explanation of the table of effects, in sentences; empty without effects."""
    study = analysis.study
    if not analysis.changes:
        return ""
    sign = "positive where good" if direction_of(study.metric, study.goal) else "with the change minus without it"
    sentences = [f"Effects are {sign}, with 95 % intervals that are not corrected for their number."]
    if study.combine == "leave-one-out":
        contexts = "within the whole, all changes against all but one; alone, one change against the baseline"
        sentences.append(f"Contexts: {contexts}; the interaction is the first minus the second.")
    if analysis.claims:
        marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
        sentences.append(f"Marks: the verdict of the claim about an effect ({marks}, · declared after its data).")
    return " ".join([*sentences, "Speed-ups are to the final score that both arms reach, above 1 where it is cheaper."])


def references(analysis: Analysis) -> str:
    """The losses of count models, such as "unigram 3.140, bigram 2.429"."""
    return ", ".join(f"{name} {loss:.3f}" for name, loss in analysis.study.references.items())


def describe_runs(analysis: Analysis) -> Iterable[str]:
    """Yield clauses on how the answer was reached: runs, seeds and parameters; what diverged; what failed."""
    study = analysis.study
    if study.kind == "probe":
        seeds = [quantity.estimate.n for quantity in analysis.quantities]
        yield f"{count_of(len(seeds), 'quantity')}, measured without training"
        yield "exact" if analysis.exact else f"{max(seeds, default=0)} of {count_of(len(study.seeds), 'seed')}"
        return
    diverged, finished, low, high = analysis.divergence
    runs = count_of(len(study.trials), "run")
    yield f"{finished - len(analysis.stopped_runs)} of {runs}, {_paired_seeds(analysis)}"
    if len(analysis.stopped_runs):
        yield f"{len(analysis.stopped_runs)} stopped early"
    yield count_of(study.parameters, "parameter")
    if finished:
        yield f"{diverged} diverged (rate {diverged / finished:.0%}, 95 % interval {low:.0%} to {high:.0%})"
    if len(analysis.failed_runs):
        yield f"{len(analysis.failed_runs)} failed: {', '.join(failures(analysis))}"


def _paired_seeds(analysis: Analysis) -> str:
    """The number of seeds that claims compare, or that finished arms have; a range where it differs."""
    declared = count_of(len(analysis.study.seeds), "paired seed")
    seeds = [claim.judgement.effect.n for claim in analysis.claims]
    unit = "claim"
    if not seeds:
        seeds, unit = [arm.estimate.n for arm in analysis.arms if arm.estimate.n], "arm"
    low, high = min(seeds, default=0), max(seeds, default=0)
    if low < high:
        return f"{low} to {high} of {declared}, by {unit}"
    return declared if low == len(analysis.study.seeds) else f"{low} of {declared}"


def failures(analysis: Analysis, at_most: int = 5) -> list[str]:
    """The causes of failed runs, each with its number of runs, and how many more causes there are."""
    causes = Counter(str(row.cause) for row in analysis.failed_runs).most_common()
    texts = [f"{count} × {cause}" for cause, count in causes[:at_most]]
    more = len(causes) - at_most
    return texts + ([f"and {count_of(more, 'other cause')}"] if more > 0 else [])


def arm(names: dict[str, str]) -> str:
    """The name of an arm from its levels alone, such as "pre · none" or "all but QK norm", or of a quantity."""
    if len(names) > 1 and {*names.values()} <= {WITH, WITHOUT}:
        features, missing = ([name for name in names if names[name] == label] for label in (WITH, WITHOUT))
        if len(missing) < 2 <= len(features):
            return f"all but {missing[0]}" if missing else "all"
        return " · ".join(features) or "baseline"
    return names.get(QUANTITY) or " · ".join(names.values()) or "baseline"
