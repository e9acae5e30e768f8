"""Successive halving: selection of the arms that are trained further (Jamieson and Talwalkar 2016)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from flaxformer.store.declaration import Goal
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean

GOALS: tuple[Goal, ...] = ("lower", "higher")


def goal_of(metric: str, goal: Goal | None = None) -> Goal:
    """Return the direction in which a metric is good: the given one, else higher for accuracy and lower otherwise."""
    if goal is not None and goal not in GOALS:
        raise UserError(f"goal is '{goal}'{did_you_mean(goal, GOALS)}")
    return goal or ("higher" if is_accuracy(metric) else "lower")


def direction_of(metric: str, goal: Goal | None = None) -> Goal | None:
    """Return the direction in which a metric is good: the given one, or that of a loss or accuracy of the task."""
    is_known = metric in ("validation_loss", "test_loss") or is_accuracy(metric)
    return goal_of(metric, goal) if is_known or goal is not None else None


def is_accuracy(metric: str) -> bool:
    """True for the accuracy of the task, which is good when it is high; for others, a study declares its `goal`."""
    return metric in ("validation_accuracy", "test_accuracy")


def rank(scores: Mapping[str, float], goal: Goal) -> list[str]:
    """Return the names from the best score to the worst; equal scores in the given order, without scores not finite."""
    sign = 1 if goal == "lower" else -1
    return sorted((name for name in scores if math.isfinite(scores[name])), key=lambda name: sign * scores[name])


@dataclasses.dataclass(frozen=True)
class Halving:
    """Stop the worst arms early, so that steps are spent on the others.

    All arms are trained for `first` steps, with the learning-rate schedule of the whole training. Of the arms of each
    compiled program, the best 1 / `factor` (rounded up), by the study's metric averaged over the seeds, are trained for
    `factor` times as many steps; and so on, until the remaining arms are trained to the end. Arms of different programs
    (such as another norm or another width) do not compete: each program keeps its own best arms.

    Args:
      factor: the best 1 / `factor` of the arms continue.
      first: number of steps to the first rung; a multiple of `training.evaluate_every` below `training.steps`.
      goal: the direction in which the metric is good; by default the study's.
    """

    factor: int = 3
    first: int = 100
    goal: Goal | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.factor < 2:
            raise UserError(f"halving.factor is {self.factor}; expected a whole number of at least 2")
        if self.first < 1:
            raise UserError(f"halving.first is {self.first}; expected a whole number of at least 1")

    def check(self, steps: int, interval: int) -> None:
        """Raise UserError if runs of so many steps are not evaluated at the first rung."""
        if self.first >= steps or self.first % interval:
            raise UserError(
                f"halving.first is {self.first}; expected a multiple of training.evaluate_every ({interval}) below "
                f"training.steps ({steps})"
            )

    def rungs(self, steps: int) -> list[int]:
        """Return the steps at which arms are stopped: first · factor^k below `steps`."""
        stops = [self.first]
        while stops[-1] * self.factor < steps:
            stops.append(stops[-1] * self.factor)
        return stops

    def best(self, scores: Mapping[str, float], metric: str) -> list[str]:
        """Return the arms of one program that continue after a rung, in the order in which they are given.

        An arm without a score at some seed, whose mean is NaN, does not continue.
        """
        best = rank(scores, goal_of(metric, self.goal))[: -(-len(scores) // self.factor)]
        return [name for name in scores if name in best]


def mean(values: Sequence[float | None]) -> float:
    """Return the mean over seeds; NaN if a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else math.nan
