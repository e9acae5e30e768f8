"""Costs and effective speed-ups in words and in tables: ratios, rules of comparison, speed-ups with intervals."""

import itertools
import math
from collections.abc import Callable, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import TOLERANCE, ArmCost, ArmSummary, CostRatio, reference_arm, unequal
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.speedup import SpeedUp, SpeedUps, at_common_score, compare_arms, metric_and_goal
from flaxformer.report import phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.report.table import DOCUMENTS, NOT_IN_PAPER, PRINTED, ItemTable, TableColumn, levels, number, words
from flaxformer.store.declaration import Declaration
from flaxformer.system.wording import count_of, duration, join_words, with_prefix

MARK = "≠"
"""Mark of a cost that differs from that of the reference arm."""


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


def brief_costs(analysis: Analysis) -> list[TableColumn[ArmSummary]]:
    """Columns of the parameters and the FLOPs of an arm, marked where they differ from the reference's."""
    of_reference = reference(analysis)

    def brief(name: str, kind: str, text: Callable[[ArmCost], str]) -> TableColumn[ArmSummary]:
        def cell(arm: ArmSummary) -> str:
            if arm.cost is None:
                return "–"
            return f"{text(arm.cost)} {MARK}" if kind in unequal(arm.cost, of_reference) else text(arm.cost)

        return TableColumn(name, cell, on=PRINTED, when=any(arm.cost for arm in analysis.arms))

    return [
        brief("parameters", "parameters", lambda cost: f"{cost.parameters:,}"),
        brief("FLOP /run", "FLOPs", lambda cost: _prefix(cost.flops)),
    ]


def arm_costs(analysis: Analysis) -> ItemTable[ArmSummary]:
    """The cost of one run of each arm, and its FLOPs relative to those of the reference; unequal costs are marked."""
    of_reference = reference(analysis)
    known = {id(arm): arm.cost for arm in analysis.arms if arm.cost is not None}

    def cost(name: str, field: str, form: Callable[[float], str], when: bool = True) -> TableColumn[ArmSummary]:
        return number(name, lambda arm: getattr(arm.cost, field), form, field, when=when)

    def ratio(arm: ArmSummary) -> float:
        return known[id(arm)].flops / of_reference.flops if of_reference and of_reference.flops else math.nan

    def mark_unequal(arm: ArmSummary) -> str:
        names = unequal(arm.cost, of_reference)
        return f"{MARK} {', '.join(names)}" if names else "="

    has_inactive = any(cost.active_parameters != cost.parameters for cost in known.values())
    columns: list[TableColumn[ArmSummary]] = [
        *levels(analysis.axes, lambda arm: arm.labels),
        TableColumn("cost", mark_unequal, is_text=True),
        cost("parameters", "parameters", _integer),
        cost("active", "active_parameters", _integer, has_inactive),
        cost("without embeddings", "parameters_without_embeddings", _integer),
        cost("FLOP /step", "flops_per_step", _prefix),
        cost("FLOP /run", "flops", _prefix),
        number("FLOP ratio", ratio, round_digits, "flops_ratio"),
        cost("tokens", "training_tokens", _prefix),
        cost("time /run", "seconds", duration),
        cost("memory", "memory_bytes", _bytes, any(cost.memory_bytes for cost in known.values())),
    ]
    items = [arm for arm in analysis.arms if id(arm) in known]
    on = NOT_IN_PAPER if differing_costs(analysis) else DOCUMENTS
    return ItemTable("Cost", columns, items, "arms", on)


def _integer(value: float) -> str:
    return f"{value:,}"


def _prefix(value: float) -> str:
    return with_prefix(value, "")


def _bytes(value: float | None) -> str:
    return with_prefix(value or 0, "B")


def effective_speed_ups(analysis: Analysis) -> ItemTable[SpeedUps]:
    """The effective speed-up of each arm over the reference, and of the arms of claims over each other."""
    columns: Sequence[TableColumn[SpeedUps]] = [
        words("arm", lambda item: phrasing.arm(item.arm.labels)),
        words("over", lambda item: phrasing.arm(item.baseline.labels)),
        words("compute, to its own", lambda item: speed_up(item.compute)),
        words("compute, to the other's", lambda item: speed_up(item.compute_to_baseline)),
        words("time, to its own", lambda item: speed_up(item.time)),
        words("time, to the other's", lambda item: speed_up(item.time_to_baseline)),
        words("seeds", lambda item: str(item.compute.log.n or "–")),
        words("arm's own", lambda item: remarks(item) or "–"),
    ]
    title = f"Effective speed-up to equal {metric_and_goal(analysis.study)[0].replace('_', ' ')}"
    return ItemTable(title, columns, analysis.speed_ups)
