"""Sweep over a number such as the learning rate: the best value in each arm, with its uncertainty.

A sweep is an axis that gives a field at least `FEWEST_VALUES` positive numbers. The other axes divide its arms into
lines, one for each combination of their levels. In each line:

- the best value is that with the best mean over the seeds, among the values that were trained to the end;
- the optimum is the minimum of a parabola in the logarithm of the value, fitted to the best value and up to
  `NEIGHBOURS` values on each side at each seed, and has Fieller's interval over the seeds (see `statistics.parabola`).

Where a halving stopped so many arms that too few values are left, the parabola is fitted at the last step at which
enough were evaluated. Values at which a run diverged are left out of the fit, and values at which a score is not finite
out of the fit and of the choice of the best. Seeds that lack one of the fitted values are left out. The interval covers
what varies with the seed, the place of the optimum included; it relies on the mean loss having about the form of a
parabola between the neighbours. The score at the best value is optimistic, since the same seeds chose the value.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from flaxformer.analysis.arms import ArmSummary
from flaxformer.statistics.estimates import estimate
from flaxformer.statistics.parabola import Vertex, near_best, vertex
from flaxformer.store.declaration import Declaration, Labels
from flaxformer.study.halving import Goal, goal_of

FEWEST_VALUES = 3
"""Number of values from which an axis is a sweep, and a parabola has a minimum."""
ENOUGH_VALUES = 4
"""Number of values at which the parabola is fitted rather than at an earlier step with more of them."""


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One level of the axis in one line: its numbers by name, and its arm."""

    numbers: Mapping[str, float]
    arm: ArmSummary


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Interpolated optimum with its 95 % interval over the seeds; an end is 0 or infinite where they do not bound it.

    Both ends are NaN for one seed.
    """

    value: float
    low: float
    high: float
    values: int
    """Number of values of the fit."""
    step: int | None
    """Step at which the fitted scores were evaluated; None is the end of training."""


@dataclasses.dataclass(frozen=True)
class SweepLine:
    """The arms that differ only along the axis, by increasing number."""

    labels: Labels
    points: Sequence[SweepPoint]
    best: SweepPoint | None
    """None if no arm was trained to the end with a finite score at every seed."""
    optimum: Optimum | None

    def is_edge(self, name: str) -> bool:
        """True if the best value is the smallest or the largest that was tried."""
        tried = [point.numbers[name] for point in self.points]
        return self.best is not None and self.best.numbers[name] in (min(tried), max(tried))


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One axis over numbers, with a line for each combination of the other axes."""

    axis: str
    names: Sequence[str]
    """Names of the numbers: one, or several where every level is a point of a space."""
    goal: Goal
    lines: Sequence[SweepLine]


def find_sweeps(study: Declaration, arms: Sequence[ArmSummary]) -> list[Sweep]:
    """Return a sweep for each axis with enough numbers, from the declaration and the arms of a study.

    The axis with the most values is first, as that which was varied to find its best value. The axis of a scaling law
    has none.
    """
    sweeps = []
    sizes = None if study.scaling is None else study.scaling.axis
    for axis in study.axes:
        coordinates = axis.coordinates if axis.name != sizes else {}
        numbers = {name: levels for name, values in coordinates.items() if (levels := _numbers(values)) is not None}
        if not any(_is_swept(values) for values in numbers.values()):
            continue
        groups: dict[tuple[tuple[str, str], ...], list[SweepPoint]] = {}
        for arm in arms:
            level = arm.labels[axis.name]
            labels = {name: label for name, label in arm.labels.items() if name != axis.name}
            labels |= {name: str(values[level]) for name, values in coordinates.items() if name not in numbers}
            point = SweepPoint({name: float(values[level]) for name, values in numbers.items()}, arm)
            groups.setdefault(tuple(labels.items()), []).append(point)
        goal = goal_of(study.metric, study.goal)
        lines = [_line(study, dict(labels), points, goal) for labels, points in groups.items() if len(points) > 1]
        if any(len(line.points) >= FEWEST_VALUES for line in lines):
            sweeps.append(Sweep(axis.name, list(numbers), goal, lines))
    return sorted(sweeps, key=lambda sweep: -max(len(line.points) for line in sweep.lines))


def _numbers(values: Mapping[str, float | str]) -> dict[str, float] | None:
    """Return the values of a path by label if all are numbers; else None."""
    numbers = {label: value for label, value in values.items() if not isinstance(value, str)}
    return numbers if len(numbers) == len(values) else None


def _is_swept(values: Mapping[str, float]) -> bool:
    return len({value for value in values.values() if value > 0}) >= FEWEST_VALUES


def _line(study: Declaration, labels: Labels, points: Sequence[SweepPoint], goal: Goal) -> SweepLine:
    sign = 1 if goal == "lower" else -1
    ordered = sorted(points, key=lambda point: tuple(point.numbers.values()))
    finished = [point for point in ordered if point.arm.estimate.n and not point.arm.not_finite]
    best = min(finished, key=lambda point: sign * point.arm.estimate.mean, default=None)
    optimum = _optimum(study, ordered, sign) if len(ordered[0].numbers) == 1 else None
    return SweepLine(labels, ordered, best, optimum)


def _optimum(study: Declaration, points: Sequence[SweepPoint], sign: int) -> Optimum | None:
    """Return the optimum of a line with one number, at the last step at which enough values were evaluated."""
    stops = {point.arm.stopped_at for point in points} - {None}
    steps = [None, *sorted((stop for stop in stops if stop is not None), reverse=True)]
    tables = [(step, _scores(study, points, step)) for step in steps]
    for enough in (ENOUGH_VALUES, FEWEST_VALUES):
        for step, scores in tables:
            if len(scores) >= enough:
                return _fit(scores, sign, step)
    return None


def _scores(study: Declaration, points: Sequence[SweepPoint], step: int | None) -> dict[float, dict[int, float]]:
    """Scores by value and seed, of the values at which no run diverged, and every score is finite."""
    by_value: dict[float, dict[int, float]] = {}
    for point in points:
        [value] = point.numbers.values()
        if value <= 0 or point.arm.diverged or point.arm.not_finite:
            continue
        arm_scores = point.arm.scores if step is None else point.arm.scores_at(study.metric, step)
        scores = {seed: score for seed, score in zip(study.seeds, arm_scores, strict=True) if score is not None}
        if scores:
            by_value[value] = scores
    return by_value


def _fit(scores: Mapping[float, Mapping[int, float]], sign: int, step: int | None) -> Optimum | None:
    near = near_best({value: sign * estimate(list(by_seed.values())).mean for value, by_seed in scores.items()})
    if len(near) < FEWEST_VALUES:
        return None
    seeds = [seed for seed in scores[near[0]] if all(seed in scores[value] for value in near)]
    if not seeds:
        return None
    fitted = vertex([math.log(value) for value in near], [[sign * scores[x][seed] for x in near] for seed in seeds])
    return None if fitted is None else _exponential(fitted, len(near), step)


def _exponential(fitted: Vertex, values: int, step: int | None) -> Optimum:
    """An optimum from the vertex in the logarithm."""

    def exp(x: float) -> float:
        return math.exp(x) if x < 700 else math.inf

    return Optimum(exp(fitted.x), exp(fitted.low), exp(fitted.high), values, step)
