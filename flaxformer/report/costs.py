"""Costs and effective speed-ups in words: ratios of unequal costs, rules of comparison, speed-ups with intervals."""

import itertools
import math
from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmCost
from flaxformer.analysis.costs import TOLERANCE, CostRatio, reference_arm, unequal
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.speedup import SpeedUp, SpeedUps, compare_arms, metric_and_goal
from flaxformer.report import phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.store.declaration import Declaration
from flaxformer.system.wording import count_of, join_words, with_prefix


def ratios(found: Sequence[CostRatio]) -> str:
    """Unequal costs, such as "layers 2 has 1.93 times the FLOPs and 1.5 times the parameters of layers 1"."""
    parts = []
    for (first, second), own in itertools.groupby(found, lambda one: _names(one)):
        parts.append(
            f"{first} has {join_words(f'{round_digits(one.ratio)} times the {one.name}' for one in own)} of {second}"
        )
    return "; ".join(parts)


def _names(one: CostRatio) -> tuple[str, str]:
    """The levels by which the two arms differ."""
    changed = [name for name in one.first if one.first[name] != one.second.get(name)]
    first, second = ({name: labels[name] for name in changed} for labels in (one.first, one.second))
    return phrasing.labels(first) or "the arm", phrasing.labels(second) or "the other"


def comparison(study: Declaration) -> str:
    """The rule of a comparison at equal cost, in a sentence; empty without one."""
    rule = study.compare
    if not rule:
        return ""
    adjusted = [own for own in rule.arms.values() if own.changes]
    farthest = max((abs(own.after - 1) for own in rule.arms.values()), default=0.0)
    return (
        f"Arms are compared at equal {rule.quantity}, within {rule.tolerance:.2g} of the baseline (largest "
        f"difference {farthest:.2g}): {' or '.join(rule.adjust)} was adjusted in {len(adjusted)} of "
        f"{count_of(len(rule.arms), 'arm')}."
    )


def speed_up(one: SpeedUp | None) -> str:
    """A speed-up with its interval, such as "1.42 [1.31, 1.54]"; "above 2.1" or "below 0.4" with censored seeds."""
    if one is not None and one.reason:
        return "not read off"
    if one is None or math.isnan(one.ratio):
        return "not determined" if one is not None and one.above and one.below else "–"
    low, high = one.interval
    if one.above or one.below:
        return f"{'above' if one.above else 'below'} {round_digits(one.ratio)}"
    if math.isnan(low):
        return f"{round_digits(one.ratio)} (one seed, no interval)"
    return f"{round_digits(one.ratio)} [{round_digits(low)}, {round_digits(high)}]"


def censoring_text(one: SpeedUp) -> str:
    """The seeds at which no cost reaches the score, or why none is read off, in words; empty without any."""
    if one.reason:
        return f"not read off: {one.reason}"
    parts = []
    if one.above:
        parts.append(f"never reached at {one.above} of {count_of(one.log.n, 'seed')}")
    if one.below:
        parts.append(f"no better than before training at {one.below} of {count_of(one.log.n, 'seed')}")
    return ", ".join(parts)


def remarks(one: SpeedUps) -> str:
    """Remarks on the speed-ups of an arm in compute, in words; empty without any."""
    reverse = one.compute_to_baseline
    found = [censoring_text(one.compute), f"to the other's, {censoring_text(reverse)}" if reverse.reason else ""]
    return "; ".join(filter(None, found))


def speed_ups(one: SpeedUps) -> str:
    """The effective speed-ups of an arm over another in one clause."""
    parts, metric = [], one.metric.replace("_", " ")
    found = ((one.compute, one.time, one.arm), (one.compute_to_baseline, one.time_to_baseline, one.baseline))
    for compute, time, arm in found:
        if compute.reason:
            parts.append(f"to the {metric} of {phrasing.arm(arm.labels)}, not read off: {compute.reason}")
            continue
        in_time = "" if time is None else f", {speed_up(time)} in time"
        parts.append(f"to the {metric} of {phrasing.arm(arm.labels)}, {speed_up(compute)} in compute{in_time}")
    return f"effective speed-up {'; '.join(parts)}"


def speed_up_in_compute(one: SpeedUps | None) -> str:
    """The speed-up in compute at the final score of the arm; where that is a bound, at that of the other arm too."""
    if one is None:
        return "–"
    if one.compute.reason or not (one.compute.above or one.compute.below):
        return speed_up(one.compute)
    return f"{speed_up(one.compute)}; {speed_up(one.compute_to_baseline)} to that of the other"


def summary(analysis: Analysis) -> str:
    """The cost of the arms, and the rule by which they are compared; empty where no cost is known."""
    found = [arm.cost for arm in analysis.arms if arm.cost is not None]
    if not found:
        return ""
    names = differing(analysis)
    each = [_range([cost.flops for cost in found], "FLOP"), _range([cost.parameters for cost in found], " parameters")]
    words = f"The arms differ in {join_words(names)}" if names else f"All arms cost the same, within {TOLERANCE:.0%}"
    text = f"{words}: {each[0]} per run and {each[1]}."
    return " ".join(filter(None, (comparison(analysis.study), text)))


def differing(analysis: Analysis) -> list[str]:
    """Return the names of the costs in which arms differ from the reference arm."""
    own = reference(analysis)
    return sorted({name for arm in analysis.arms for name in unequal(arm.cost, own)})


def reference(analysis: Analysis) -> ArmCost | None:
    """Return the cost of the reference arm of a study; None where it is not known."""
    arm = reference_arm(analysis.study.axes, analysis.arms)
    return None if arm is None else arm.cost


def claim_speed_up(analysis: Analysis, claim: JudgedClaim) -> SpeedUps | None:
    """Return the speed-ups of the first arm of a claim over the second; None for other claims, or where not known.

    A speed-up is read off the curve of one metric, so only claims of the present declaration about that metric have it.
    """
    if claim.declaration is None or metric_and_goal(analysis.study)[0] != analysis.study.metric:
        return None
    arms = [arm for _, labels in claim.terms for arm in analysis.arms if arm.labels == labels]
    return compare_arms(analysis.study, *arms) if len(arms) == len(claim.terms) == 2 else None


def claim_speed_ups(analysis: Analysis, claim: JudgedClaim) -> list[str]:
    """Return the effect of a claim as an effective speed-up in one clause; none where it is not known."""
    found = claim_speed_up(analysis, claim)
    return [] if found is None else [speed_ups(found)]


def _range(values: Sequence[float], unit: str) -> str:
    """The smallest and the largest of some numbers."""
    low, high = with_prefix(min(values), unit), with_prefix(max(values), unit)
    return low if low == high else f"{low} to {high}"
