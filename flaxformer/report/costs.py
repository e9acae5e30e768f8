"""Costs and effective speed-ups in words: ratios of unequal costs, rules of comparison, speed-ups with intervals."""

import itertools
import math
from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import TOLERANCE, ArmCost, CostRatio, reference_arm, unequal
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.speedup import SpeedUp, SpeedUps, at_common_score, compare_arms, metric_and_goal
from flaxformer.report import phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.store.declaration import Declaration
from flaxformer.system.wording import count_of, join_words, with_prefix


def ratios(cost_ratios: Sequence[CostRatio]) -> str:
    """Unequal costs, such as "layers 2 has 1.93 times the FLOPs and 1.5 times the parameters of layers 1"."""
    clauses = []
    for (first, second), group in itertools.groupby(cost_ratios, _names):
        times = (f"{round_digits(cost.ratio)} times the {cost.name}" for cost in group)
        clauses.append(f"{first} has {join_words(times)} of {second}")
    return "; ".join(clauses)


def _names(cost: CostRatio) -> tuple[str, str]:
    """The levels by which the two arms differ."""
    changed = [name for name in cost.first if cost.first[name] != cost.second.get(name)]
    first, second = ({name: labels[name] for name in changed} for labels in (cost.first, cost.second))
    return phrasing.labels(first) or "the arm", phrasing.labels(second) or "the other"


def comparison(study: Declaration) -> str:
    """The rule of a comparison at equal cost, in a sentence; empty without one."""
    rule = study.compare
    if not rule:
        return ""
    adjusted = [arm for arm in rule.arms.values() if arm.changes]
    farthest = max((abs(arm.after - 1) for arm in rule.arms.values()), default=0.0)
    return (
        f"Arms are compared at equal {rule.quantity}, within {rule.tolerance:.2g} of the baseline (largest "
        f"difference {farthest:.2g}): {' or '.join(rule.adjust)} was adjusted in {len(adjusted)} of "
        f"{count_of(len(rule.arms), 'arm')}."
    )


def speed_up(estimate: SpeedUp | None) -> str:
    """A speed-up with its interval, such as "1.42 [1.31, 1.54]"; "above 2.1" or "below 0.4" with censored seeds."""
    if estimate is not None and estimate.reason:
        return "not read off"
    if estimate is None or math.isnan(estimate.ratio):
        return "not determined" if estimate is not None and estimate.above and estimate.below else "–"
    low, high = estimate.interval
    if estimate.above or estimate.below:
        return f"{'above' if estimate.above else 'below'} {round_digits(estimate.ratio)}"
    if math.isnan(low):
        return f"{round_digits(estimate.ratio)} (one seed, no interval)"
    return f"{round_digits(estimate.ratio)} [{round_digits(low)}, {round_digits(high)}]"


def censoring_text(estimate: SpeedUp) -> str:
    """The seeds at which no cost reaches the score, or why none is read off, in words; empty without any."""
    if estimate.reason:
        return f"not read off: {estimate.reason}"
    clauses = []
    if estimate.above:
        clauses.append(f"never reached at {estimate.above} of {count_of(estimate.log.n, 'seed')}")
    if estimate.below:
        clauses.append(f"no better than before training at {estimate.below} of {count_of(estimate.log.n, 'seed')}")
    return ", ".join(clauses)


def remarks(pair: SpeedUps) -> str:
    """Remarks on the speed-ups of an arm in compute, in words; empty without any."""
    reverse = pair.compute_to_baseline
    texts = [censoring_text(pair.compute), f"to the other's, {censoring_text(reverse)}" if reverse.reason else ""]
    return "; ".join(filter(None, texts))


def speed_ups(pair: SpeedUps) -> str:
    """The effective speed-ups of an arm over another in one clause."""
    clauses, metric = [], pair.metric.replace("_", " ")
    directions = ((pair.compute, pair.time, pair.arm), (pair.compute_to_baseline, pair.time_to_baseline, pair.baseline))
    for compute, time, arm in directions:
        if compute.reason:
            clauses.append(f"to the {metric} of {phrasing.arm(arm.labels)}, not read off: {compute.reason}")
            continue
        in_time = "" if time is None else f", {speed_up(time)} in time"
        clauses.append(f"to the {metric} of {phrasing.arm(arm.labels)}, {speed_up(compute)} in compute{in_time}")
    return f"effective speed-up {'; '.join(clauses)}"


def speed_up_to_common_score(to_arm: SpeedUp | None, to_other: SpeedUp | None) -> str:
    """The speed-up to that of two final scores which both arms reach; without one, to the arm's own."""
    return speed_up(at_common_score(to_arm, to_other) or to_arm)


def summary(analysis: Analysis) -> str:
    """The cost of the arms, and the rule by which they are compared; empty where no cost is known."""
    costs = [arm.cost for arm in analysis.arms if arm.cost is not None]
    if not costs:
        return ""
    names = differing_costs(analysis)
    each = [_range([cost.flops for cost in costs], "FLOP"), _range([cost.parameters for cost in costs], " parameters")]
    words = f"The arms differ in {join_words(names)}" if names else f"All arms cost the same, within {TOLERANCE:.0%}"
    text = f"{words}: {each[0]} per run and {each[1]}."
    return " ".join(filter(None, (comparison(analysis.study), text)))


def differing_costs(analysis: Analysis) -> list[str]:
    """Return the names of the costs in which arms differ from the reference arm."""
    reference_cost = reference(analysis)
    return sorted({name for arm in analysis.arms for name in unequal(arm.cost, reference_cost)})


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


def speed_ups_of_claims(analysis: Analysis) -> list[str]:
    """Return the effect of each claim as an effective speed-up, where it is known."""
    pairs = [(claim, claim_speed_up(analysis, claim)) for claim in analysis.claims]
    return [f"{claim.text}: {speed_ups(pair)}" for claim, pair in pairs if pair is not None]


def _range(values: Sequence[float], unit: str) -> str:
    """The smallest and the largest of some numbers."""
    low, high = with_prefix(min(values), unit), with_prefix(max(values), unit)
    return low if low == high else f"{low} to {high}"
