"""Summary of one arm over its seeds, and ratios of the costs of arms that are not equal."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flaxformer.analysis.trials import TrialResults
from flaxformer.statistics.estimates import Estimate, estimate, proportion
from flaxformer.statistics.finite import WithoutValue, finite_values
from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredAxis, Labels, Terms, key_of
from flaxformer.store.rows import Row
from flaxformer.study.divergence import is_diverged
from flaxformer.system.wording import count_of

Curve = tuple[list[int], list[Estimate]]
"""Steps, and the estimate over seeds at each."""
MOST_LISTED = 6
"""Largest number of arms of which the rate of divergence is given."""
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


COSTS = [field.name for field in dataclasses.fields(ArmCost) if field.name != "seconds"]


@dataclasses.dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds: scores in the order of `seeds`, None where a run has none.

    That is where it is missing, failed or stopped early, or where its number is not finite.
    """

    labels: Labels
    scores: Sequence[float | None]
    rows: Sequence[Row | None]
    """Rows with all their columns, read from the folder when they are asked for."""
    diverged: int
    """Number of runs that diverged."""
    results: TrialResults | None = None
    """Results of all trials by column; None for a quantity, and for an arm of a withdrawn claim."""
    places: Sequence[int] = ()
    """Places of the arm's trials in these results."""
    not_finite: tuple[int, ...] = ()
    """Seeds at which the number is not finite, and so not a score."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """Least and largest value that a mean of the metric can have."""

    @functools.cached_property
    def estimate(self) -> Estimate:
        """Mean and interval over the seeds with a score."""
        return estimate([score for score in self.scores if score is not None]).within(self.bounds)

    def without_value(self, study: Declaration, name: str) -> WithoutValue:
        """Return the seeds at which a metric of the runs is not finite; of a quantity, its own."""
        seeds = self.not_finite
        if self.results is not None and name != study.metric:
            missing = set(self.results.not_finite(name))
            seeds = tuple(study.trials[place].seed for place in self.places if place in missing)
        where = "" if QUANTITY in self.labels else ", ".join(f"{axis} {label}" for axis, label in self.labels.items())
        return WithoutValue(name, seeds, len(study.seeds), where)

    @property
    def statuses(self) -> list[str | None]:
        """Status of the run at each seed; None where it is missing."""
        return [None] * len(self.rows) if self.results is None else [self.results.statuses[i] for i in self.places]

    @property
    def runs(self) -> int:
        """Number of runs that ended, early or not, and did not fail."""
        return sum(status not in (None, "failed") for status in self.statuses)

    @property
    def has_diverged(self) -> list[bool]:
        """For each seed, whether its run diverged."""
        if self.results is None:
            return [row is not None and is_diverged(row) for row in self.rows]
        return [bool(diverged) for diverged in self.results.diverged[np.asarray(self.places, int)]]

    def numbers(self, name: str) -> list[float | None]:
        """A column of numbers, such as "seconds", or a metric at each seed; None where a run has none."""
        column = None if self.results is None else self.results.column(name)
        return [None] * len(self.rows) if column is None else [column[place] for place in self.places]

    @functools.cached_property
    def cost(self) -> ArmCost | None:
        """Cost of a run; None without finished runs, or for results from before costs were recorded."""
        columns: dict[str, list[Any]] = {name: self.numbers(name) for name in (*COSTS, "seconds", "group_size")}
        required = [columns[name] for name in COSTS if name != "memory_bytes"]
        known = [place for place, costs in enumerate(zip(*required, strict=True)) if None not in costs]
        if not known:
            return None
        shares = [(columns["seconds"][place] or 0.0) / (columns["group_size"][place] or 1) for place in known]
        return ArmCost(**{name: columns[name][known[0]] for name in COSTS}, seconds=statistics.fmean(shares))

    @functools.cached_property
    def stopped_at(self) -> int | None:
        """Step at which a halving stopped the arm; None if it was not stopped."""
        if "stopped" not in self.statuses or self.results is None:
            return None
        return self.results.table["stopped_at"][self.places[self.statuses.index("stopped")]]

    def curve(self, metric: str) -> Curve | None:
        """Learning curve over the runs that ended, by the rule of divergence; None without any.

        An evaluation that is not finite is left out.
        """
        if self.results is None:
            return None
        steps, values = self.results.curves(metric)
        ended = [i for i, status in zip(self.places, self.statuses, strict=True) if status in ("done", "diverged")]
        curves = [(i, curve) for i in ended if (curve := values[i]) is not None]
        if not curves:
            return None
        columns = [finite_values(column) for column in zip(*(curve for _, curve in curves), strict=True)]
        points = [(at, column) for at, column in zip(steps[curves[0][0]] or (), columns, strict=True) if column]
        estimates = [estimate(column).within(self.bounds) for _, column in points]
        return ([at for at, _ in points], estimates) if points else None

    def scores_at(self, metric: str, step: int) -> list[float | None]:
        """The metric of the run at each seed after a step, stopped runs among them; None where it was not evaluated."""
        if self.results is None:
            return [None] * len(self.rows)
        steps, values = self.results.curves(metric)
        curves = [(list(steps[i] or ()), values[i]) for i in self.places]
        return [None if curve is None or step not in at else curve[at.index(step)] for at, curve in curves]

    def stopped_estimate(self, metric: str) -> Estimate:
        """Mean and interval of the metric at the step at which a halving stopped the arm."""
        scores = [] if self.results is None else self.results.scores(metric, ("stopped",))
        return estimate([score for i in self.places if (score := scores[i]) is not None]).within(self.bounds)


def divergence_rates(arms: Sequence[ArmSummary]) -> list[str]:
    """Return a sentence on the rate of divergence, with its interval, for each arm with a diverged run."""
    sentences = []
    for arm in arms:
        if arm.diverged:
            n = arm.runs
            low, high = proportion(arm.diverged, n)
            name = ", ".join(f"{axis} {label}" for axis, label in arm.labels.items()) or "the baseline"
            rate = f"rate {arm.diverged / n:.0%}, 95 % interval {low:.0%} to {high:.0%}"
            sentences.append(f"{arm.diverged} of {count_of(n, 'run')} of {name} diverged ({rate}).")
    more = len(sentences) - MOST_LISTED
    return sentences[:MOST_LISTED] + ([f"Of {count_of(more, 'other arm')}, runs diverged too."] if more > 0 else [])


def without_value(study: Declaration, arms: Sequence[ArmSummary]) -> list[WithoutValue]:
    """Return the seeds at which a quantity, or a metric or number of an evaluation set of an arm, is not finite."""
    names = dict.fromkeys((study.metric, *study.evaluation_columns))
    names_of = [([quantity] if (quantity := arm.labels.get(QUANTITY)) else names) for arm in arms]
    gaps = [arm.without_value(study, name) for arm, columns in zip(arms, names_of, strict=True) for name in columns]
    return [gap for gap in gaps if gap.seeds]


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
