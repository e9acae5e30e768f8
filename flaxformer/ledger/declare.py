"""Declaration of a ledger: the recipe to improve, the metric, the effect of interest, and the seeds of attempts."""

import copy
import dataclasses
from pathlib import Path
from typing import Self

from flaxformer.ledger import rules
from flaxformer.ledger.budget import EqualSeconds, RunBudget
from flaxformer.study.checks import check_name
from flaxformer.study.declare import Measure
from flaxformer.study.divergence import is_test_metric
from flaxformer.study.equal_cost import EqualCost
from flaxformer.study.halving import Goal, goal_of
from flaxformer.study.metrics import check_metric, named_goal
from flaxformer.study.seeds import LAST
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError
from flaxformer.system.wording import check_text
from flaxformer.training.run import Run

MOST_ATTEMPTS = 10_000
"""Number of attempts for which a ledger reserves seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """A recipe that is improved by one attempt after another, each against the best recipe so far.

    An attempt trains the best recipe and the candidate at seeds that no other attempt uses, pair after pair, until it
    is kept, dropped, or has used its seeds:

    * kept: the evidence against "the candidate is not better" reaches 1 / α_t. Over all attempts, the expected share of
      kept changes without effect is at most `false_keeps` (`statistics.online_testing`).
    * dropped: an improvement of `effect` or more is excluded, with a probability of error of at most `false_drops` per
      attempt.
    * open: neither, after `seeds` pairs.

    Args:
      name: name of its folder.
      start: the recipe that attempts improve.
      effect: smallest improvement of interest, in the unit of the metric.
      metric: metric of the validation data by which recipes are compared, or a name that `measure` returns.
      measure: traced function `measure(params, run)` that returns further metrics, as in `Study`.
      metric_unit: unit of a metric of `measure`.
      goal: its better values; by default "higher" for accuracies of the task, and "lower" for others.
      attempts: expected number of attempts, which share nine tenths of `false_keeps` equally; more may be made.
      seeds: largest number of pairs of an attempt.
      together: number of pairs that are trained between two looks.
      first_seed: first seed of the first attempt; the following ones are used once each.
      compare: cost that the candidate has in common with the best recipe, as in `Study`; or "equal seconds", measured
        when an attempt is proposed; None for recipes as they are.
      budget: what a run of the start may cost, which gives its training.steps: "5m", "90s", "10M tokens" or
        "2e15 FLOPs"; empty for those that it has. Time is measured once, when the ledger begins.
      tuning_seeds: seeds at which learning rates of a candidate are tried, the same for every attempt.
      confirmation_seeds: seeds of the confirmation, which compares the best recipe with the start on the test data.
      false_keeps: bound of the false discovery rate.
      false_drops: bound of the probability that an attempt with the effect is dropped.
      file: file of the ledger, set when it is loaded.

    Raises:
      UserError: a value that is not allowed.
    """

    name: str
    start: Run
    effect: float
    metric: str = "validation_loss"
    measure: Measure | None = None
    metric_unit: str = ""
    goal: Goal | None = None
    attempts: int = 50
    seeds: int = 40
    together: int = 1
    first_seed: int = 1000
    compare: EqualCost | EqualSeconds | str | None = "equal compute"
    budget: str = ""
    tuning_seeds: int = 3
    confirmation_seeds: int = 8
    false_keeps: float = 0.05
    false_drops: float = 0.05
    file: Path | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_name(self.name)
        check_text("metric_unit", self.metric_unit)
        check_metric(self.metric, self.start, self.measure is not None)
        if is_test_metric(self.metric):
            raise UserError(
                f"metric is '{self.metric}'; expected one of the validation data: attempts never see others"
            )
        object.__setattr__(self, "goal", goal_of(self.metric, self.goal or named_goal(self.metric, self.start)))
        if self.compare == "equal seconds":
            object.__setattr__(self, "compare", EqualSeconds())
        elif not isinstance(self.compare, EqualSeconds):
            object.__setattr__(self, "compare", EqualCost.of(self.compare))
        if self.budget:
            RunBudget.of(self.budget)
        _check("effect", self.effect, "a number above 0, in the unit of the metric", self.effect > 0)
        for name, least in (
            ("attempts", 1),
            ("seeds", 4),
            ("together", 1),
            ("tuning_seeds", 1),
            ("confirmation_seeds", 4),
        ):
            _check(name, getattr(self, name), f"at least {least}", getattr(self, name) >= least)
        for name in ("false_keeps", "false_drops"):
            value = getattr(self, name)
            _check(name, value, "a probability between 0 and 1, such as 0.05", 0 < value < 1)
        room = LAST - (rules.seeds_of(self, MOST_ATTEMPTS)[-1] - self.first_seed)
        _check("first_seed", self.first_seed, f"a whole number from 0 to {room}", 0 <= self.first_seed <= room)
        fixed = {name: seed for name, seed in vars(self.start.seeds).items() if seed is not None}
        _check("start.seeds", fixed, "None for each, since every pair has a seed", not fixed)

    def in_file(self, file: Path) -> Self:
        """Return the same ledger with its file."""
        ledger = copy.copy(self)
        object.__setattr__(ledger, "file", file)
        return ledger


def _check(name: str, value: object, expected: str, holds: bool) -> None:
    if not holds:
        raise UserError(f"{name} is {value}; expected {expected}")
