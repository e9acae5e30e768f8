"""Ratios of the costs of arms that are not equal."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from flaxformer.analysis.arms import ArmCost, ArmSummary
from flaxformer.store.declaration import QUANTITY, DeclaredAxis, Labels, Terms, key_of
from flaxformer.store.rows import Row

TOLERANCE = 0.02
"""Relative difference up to which two costs count as equal."""
COMPARED = {"flops": "FLOPs", "parameters": "parameters"}
"""Costs whose ratios are stated, by their column, with their names; seconds depend on the machine."""


@dataclasses.dataclass(frozen=True)
class CostRatio:
    """A cost of one arm divided by that of another, where the two differ by more than `TOLERANCE`."""

    first: Labels
    second: Labels
    name: str
    ratio: float


def seconds_of(row: Row) -> float:
    """Return the seconds of one run; of runs trained together, each has its share."""
    return (row.seconds or 0.0) / (row.group_size or 1)


def unequal(cost: ArmCost | None, reference: ArmCost | None) -> dict[str, float]:
    """Return the ratio of each cost that differs by more than `TOLERANCE`, by its name; none for an unknown cost."""
    if cost is None or reference is None:
        return {}
    ratios = {name: getattr(cost, column) / max(getattr(reference, column), 1) for column, name in COMPARED.items()}
    return {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > TOLERANCE}


def claim_cost_ratios(terms: Terms, arms: Mapping[str, ArmSummary]) -> tuple[CostRatio, ...]:
    """Return the ratios of unequal costs of the arms that a claim compares, pair by pair; none for an unknown cost.

    Args:
      terms: the claim's contrast.
      arms: the arms and quantities of the study, by `key_of` their labels.
    """
    compared = [arms.get(key_of(labels)) for _, labels in terms]
    return tuple(
        CostRatio(first.labels, second.labels, name, ratio)
        for first, second in zip(compared[::2], compared[1::2], strict=False)
        if first is not None and second is not None and QUANTITY not in first.labels
        for name, ratio in unequal(first.cost, second.cost).items()
    )


def reference_arm(axes: Iterable[DeclaredAxis], arms: Sequence[ArmSummary]) -> ArmSummary | None:
    """Return the arm that others are compared with: that with the baseline's levels, else the first."""
    baseline = {axis.name: axis.baseline for axis in axes}
    return next((arm for arm in arms if arm.labels == baseline), arms[0] if arms else None)
