"""Tables of the costs of arms, and of their effective speed-ups."""

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.costs import ArmCost, unequal
from flaxformer.analysis.speedup import metric_and_goal, speed_ups
from flaxformer.report import costs, phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.report.table import MOST_ROWS, Table
from flaxformer.system.wording import duration, with_prefix

MARK = "≠"
"""Mark of a cost that differs from that of the reference arm."""
BRIEF = ("parameters", "FLOP /run")
"""Header of the costs in the table of arms."""


def has_costs(analysis: Analysis) -> bool:
    """True if the cost of an arm is known."""
    return any(cost is not None for cost in analysis.costs)


def brief(cost: ArmCost | None, reference: ArmCost | None) -> list[str]:
    """The parameters and the FLOPs of an arm for the table of arms, marked where they differ from the reference's."""
    if cost is None:
        return ["–", "–"]
    found = unequal(cost, reference)
    parameters = f"{cost.parameters:,}{f' {MARK}' if 'parameters' in found else ''}"
    return [parameters, f"{with_prefix(cost.flops, '')}{f' {MARK}' if 'FLOPs' in found else ''}"]


def arm_costs(analysis: Analysis) -> Table:
    """The cost of one run of each arm, and its FLOPs relative to those of the reference; unequal costs are marked."""
    study, own = analysis.study, costs.reference(analysis)
    found = list(zip(analysis.arms, analysis.costs, strict=True))[:MOST_ROWS]
    known = [cost for cost in analysis.costs if cost is not None]
    optional = {
        "active": any(cost.active_parameters != cost.parameters for cost in known),
        "memory": any(cost.memory_bytes for cost in known),
    }
    rows = []
    for arm, cost in found:
        if cost is not None:
            rows.append([*arm.labels.values(), _mark(cost, own), *_cells(cost, own, optional)])
    axes = [axis.name for axis in study.axes]
    header = [
        "parameters",
        *(["active"] if optional["active"] else []),
        "without embeddings",
        "FLOP /step",
        "FLOP /run",
    ]
    header += ["FLOP ratio", "tokens", "time /run", *(["memory"] if optional["memory"] else [])]
    return Table("Cost", [*axes, "cost", *header], rows, len(axes) + 1, len(known) - len(rows), "arms")


def _cells(cost: ArmCost, reference: ArmCost | None, optional: dict[str, bool]) -> list[str]:
    """The numbers of one row."""
    ratio = cost.flops / reference.flops if reference is not None and reference.flops else float("nan")
    return [
        f"{cost.parameters:,}",
        *([f"{cost.active_parameters:,}"] if optional["active"] else []),
        f"{cost.parameters_without_embeddings:,}",
        with_prefix(cost.flops_per_step, ""),
        with_prefix(cost.flops, ""),
        round_digits(ratio),
        with_prefix(cost.training_tokens, ""),
        duration(cost.seconds),
        *([with_prefix(cost.memory_bytes or 0, "B")] if optional["memory"] else []),
    ]


def _mark(cost: ArmCost, reference: ArmCost | None) -> str:
    """The names of the costs that differ from the reference's, after a mark."""
    names = unequal(cost, reference)
    return f"{MARK} {', '.join(names)}" if names else "="


def effective_speed_ups(analysis: Analysis) -> Table:
    """The effective speed-up of each arm over the reference, and of the arms of claims over each other."""
    metric, _ = metric_and_goal(analysis.study)
    rows = [
        [
            phrasing.arm(one.arm.labels),
            phrasing.arm(one.baseline.labels),
            costs.speed_up(one.compute),
            costs.speed_up(one.compute_to_baseline),
            costs.speed_up(one.time),
            costs.speed_up(one.time_to_baseline),
            str(one.compute.log.n or "–"),
            costs.remarks(one) or "–",
        ]
        for one in speed_ups(analysis.study, analysis.arms)
    ]
    title = f"Effective speed-up to equal {metric.replace('_', ' ')}"
    header = ["compute, to its own", "compute, to the other's", "time, to its own", "time, to the other's"]
    return Table(title, ["arm", "over", *header, "seeds", "arm's own"], rows, 8)
