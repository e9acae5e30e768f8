"""Cost of the arms of a study from their rows, and the ratios of unequal costs."""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flaxformer.analysis.arms import ArmSummary
from flaxformer.store.declaration import QUANTITY, DeclaredAxis, Labels
from flaxformer.store.rows import Row

TOLERANCE = 0.02
"""Relative difference up to which two costs count as equal."""
COMPARED = {"flops": "FLOPs", "parameters": "parameters"}
"""Costs whose ratios are stated, by their column, with their names; seconds depend on the machine."""


@dataclasses.dataclass(frozen=True)
class ArmCost:
    """Cost of one run of an arm, equal for all of its seeds but for the seconds."""

    parameters: int
    active_parameters: int
    parameters_without_embeddings: int
    flops_per_step: float
    flops: float
    training_tokens: int
    memory_bytes: int | None
    seconds: float
    """Mean over the runs; of runs trained together, each has its share of their time."""


@dataclasses.dataclass(frozen=True)
class CostRatio:
    """A cost of one arm divided by that of another, where the two differ by more than `TOLERANCE`."""

    first: Labels
    second: Labels
    name: str
    ratio: float


NAMES = [field.name for field in dataclasses.fields(ArmCost) if field.name != "seconds"]
REQUIRED = [name for name in NAMES if name != "memory_bytes"]
"""Costs that a row has all of, or none."""


def cost_of_arm(arm: ArmSummary) -> ArmCost | None:
    """Return the cost of an arm; None without finished runs, or for results from before costs were recorded."""
    return _cost({name: arm.numbers(name) for name in (*NAMES, "seconds", "group_size")})


def costs_of_arms(arms: Sequence[ArmSummary]) -> list[ArmCost | None]:
    """Return the cost of each arm; each column of the results is read once."""
    names = (*NAMES, "seconds", "group_size")
    found: dict[int, dict[str, list[float | None]]] = {}
    costs: list[ArmCost | None] = []
    for arm in arms:
        if arm.results is None:
            costs.append(None)
            continue
        columns = found.setdefault(id(arm.results), {})
        columns = columns or columns | {name: arm.results.numbers(name).to_list() for name in names}
        found[id(arm.results)] = columns
        costs.append(_cost({name: [column[place] for place in arm.places] for name, column in columns.items()}))
    return costs


def _cost(columns: Mapping[str, Sequence[float | None]]) -> ArmCost | None:
    """The cost of one arm from the columns of its runs."""
    known = [
        place
        for place, numbers in enumerate(zip(*(columns[name] for name in REQUIRED), strict=True))
        if None not in numbers
    ]
    if not known:
        return None
    shares = [(columns["seconds"][place] or 0.0) / (columns["group_size"][place] or 1) for place in known]
    first: dict[str, Any] = {name: columns[name][known[0]] for name in NAMES}
    return ArmCost(**first, seconds=statistics.fmean(shares))


def seconds_of(row: Row) -> float:
    """Return the seconds of one run; of runs trained together, each has its share."""
    return (row.seconds or 0.0) / (row.group_size or 1)


def unequal(cost: ArmCost | None, reference: ArmCost | None) -> dict[str, float]:
    """Return the ratio of each cost that differs by more than `TOLERANCE`, by its name; none for an unknown cost."""
    if cost is None or reference is None:
        return {}
    found = {name: getattr(cost, column) / max(getattr(reference, column), 1) for column, name in COMPARED.items()}
    return {name: ratio for name, ratio in found.items() if abs(ratio - 1) > TOLERANCE}


def cost_ratios(first: ArmSummary, second: ArmSummary) -> Iterator[CostRatio]:
    """Yield the ratios of the costs of two arms that are not equal; none where a cost is not known."""
    for name, ratio in unequal(cost_of_arm(first), cost_of_arm(second)).items():
        yield CostRatio(first.labels, second.labels, name, ratio)


def claim_cost_ratios(terms: Sequence[tuple[float, Labels]], measured: Sequence[ArmSummary]) -> tuple[CostRatio, ...]:
    """Return the ratios of unequal costs of the arms that a claim compares, pair by pair."""
    arms = [next((arm for arm in measured if arm.labels == labels), None) for _, labels in terms]
    pairs = zip(arms[::2], arms[1::2], strict=False)
    return tuple(
        ratio
        for first, second in pairs
        if first is not None and second is not None and QUANTITY not in first.labels
        for ratio in cost_ratios(first, second)
    )


def reference_arm(axes: Iterable[DeclaredAxis], arms: Sequence[ArmSummary]) -> ArmSummary | None:
    """Return the arm that others are compared with: that with the baseline's levels, else the first."""
    own = {axis.name: axis.baseline for axis in axes}
    return next((arm for arm in arms if arm.labels == own), arms[0] if arms else None)
