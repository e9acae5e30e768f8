"""Columns and tables of the costs of arms, and of their effective speed-ups."""

import math
from collections.abc import Callable, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmCost, ArmSummary, unequal
from flaxformer.analysis.speedup import SpeedUps, metric_and_goal
from flaxformer.report import costs, phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.report.table import DOCUMENTS, NOT_IN_PAPER, PRINTED, ItemTable, TableColumn, levels, number, words
from flaxformer.system.wording import duration, with_prefix

MARK = "≠"
"""Mark of a cost that differs from that of the reference arm."""


def brief_costs(analysis: Analysis) -> list[TableColumn[ArmSummary]]:
    """Columns of the parameters and the FLOPs of an arm, marked where they differ from the reference's."""
    reference = costs.reference(analysis)

    def brief(name: str, kind: str, text: Callable[[ArmCost], str]) -> TableColumn[ArmSummary]:
        def cell(arm: ArmSummary) -> str:
            if arm.cost is None:
                return "–"
            return f"{text(arm.cost)} {MARK}" if kind in unequal(arm.cost, reference) else text(arm.cost)

        return TableColumn(name, cell, on=PRINTED, when=any(arm.cost for arm in analysis.arms))

    return [
        brief("parameters", "parameters", lambda cost: f"{cost.parameters:,}"),
        brief("FLOP /run", "FLOPs", lambda cost: _prefix(cost.flops)),
    ]


def arm_costs(analysis: Analysis) -> ItemTable[ArmSummary]:
    """The cost of one run of each arm, and its FLOPs relative to those of the reference; unequal costs are marked."""
    reference = costs.reference(analysis)
    known = {id(arm): arm.cost for arm in analysis.arms if arm.cost is not None}

    def cost(name: str, field: str, form: Callable[[float], str], when: bool = True) -> TableColumn[ArmSummary]:
        return number(name, lambda arm: getattr(arm.cost, field), form, field, when=when)

    def ratio(arm: ArmSummary) -> float:
        return known[id(arm)].flops / reference.flops if reference and reference.flops else math.nan

    def mark_unequal(arm: ArmSummary) -> str:
        names = unequal(arm.cost, reference)
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
    on = NOT_IN_PAPER if costs.differing_costs(analysis) else DOCUMENTS
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
        words("compute, to its own", lambda item: costs.speed_up(item.compute)),
        words("compute, to the other's", lambda item: costs.speed_up(item.compute_to_baseline)),
        words("time, to its own", lambda item: costs.speed_up(item.time)),
        words("time, to the other's", lambda item: costs.speed_up(item.time_to_baseline)),
        words("seeds", lambda item: str(item.compute.log.n or "–")),
        words("arm's own", lambda item: costs.remarks(item) or "–"),
    ]
    title = f"Effective speed-up to equal {metric_and_goal(analysis.study)[0].replace('_', ' ')}"
    return ItemTable(title, columns, analysis.speed_ups)
