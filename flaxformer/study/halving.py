"""Successive halving: which arms go on where all have come to a rung (Jamieson and Talwalkar 2016)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from flaxformer.struct import UserError, did_you_mean

Goal = Literal["lower", "higher"]
GOALS: tuple[Goal, ...] = ("lower", "higher")


def goal_of(metric: str, goal: Goal | None = None) -> Goal:
    """Which way a metric is good: as given, else higher for accuracy and lower for everything else."""
    if goal is not None and goal not in GOALS:
        raise UserError(f"goal is '{goal}'{did_you_mean(goal, GOALS)}")
    return goal or ("higher" if metric == "validation_accuracy" else "lower")


def ranked(scores: Mapping[str, float], goal: Goal) -> list[str]:
    """Names from the best to the worst; equals in the given order, what has no number last."""
    sign = 1 if goal == "lower" else -1
    return sorted(scores, key=lambda name: sign * scores[name] if not math.isnan(scores[name]) else math.inf)


@dataclasses.dataclass(frozen=True)
class Halving:
    """Stop the worst arms early, so that steps are spent on the others.

    All arms are trained for `first` steps, with the schedule of the whole training; of each program's arms the best
    1 / `factor` (rounded up), by the study's metric averaged over the seeds, are trained for `factor` times as many
    steps; and so on, until those that are left are trained to the end. Arms of different programs (another norm,
    another width) do not compete, so that each keeps its own best.

    Args:
      factor: one in how many goes on.
      first: steps to the first rung; a multiple of the evaluation interval, below all steps.
      goal: which way the metric is good; by default higher for validation_accuracy, lower for all else.
    """

    factor: int = 3
    first: int = 100
    goal: Goal | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factor, int) or self.factor < 2:
            raise UserError(f"halving.factor is {self.factor}; expected a whole number of at least 2")
        if not isinstance(self.first, int) or self.first < 1:
            raise UserError(f"halving.first is {self.first}; expected a whole number of at least 1")
        goal_of("", self.goal)

    def check(self, steps: int, interval: int) -> None:
        """Refuse rungs at which a training is not evaluated."""
        if self.first >= steps or self.first % interval:
            raise UserError(
                f"halving.first is {self.first}; expected a multiple of training.evaluate_every ({interval}) below "
                f"training.steps ({steps})"
            )

    def rungs(self, steps: int) -> list[int]:
        """The steps after which arms are stopped: first · factor^k, below all steps."""
        found = [self.first]
        while found[-1] * self.factor < steps:
            found.append(found[-1] * self.factor)
        return found

    def best(self, scores: Mapping[str, float], metric: str) -> list[str]:
        """The arms of one program that go on from a rung, in the order in which they are given."""
        kept = ranked(scores, goal_of(metric, self.goal))[: -(-len(scores) // self.factor)]
        return [name for name in scores if name in kept]


def mean(values: Sequence[float | None]) -> float:
    """The mean over seeds; NaN where one is missing or failed."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else math.nan
