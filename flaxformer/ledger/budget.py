"""Budgets of a run: time on a device, tokens or FLOPs, as a number of steps; and candidates at equal seconds.

Seconds are measured and therefore follow from no config. The numbers of steps that they give are written to the
ledger's log, and hold for every process and device that resumes it.
"""

import dataclasses
import re
import statistics
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import jax

from flaxformer.core.paths import replace_at
from flaxformer.study.equal_cost import EVALUATE_EVERY, STEPS, changes_of_steps
from flaxformer.system.errors import UserError
from flaxformer.system.wording import duration, with_prefix
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.flops import flops_per_step
from flaxformer.training.run import Run

SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
PREFIXES = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}
TIME = re.compile(rf"([\d.]+)\s*({'|'.join(SECONDS)})")
COUNT = re.compile(rf"([\d.]+(?:[eE]\+?\d+)?)\s*({'|'.join(PREFIXES)})\s*(tokens|FLOPs?)")
ROUNDS = 5
"""Number of times that each run is timed; they take turns."""
SECONDS_PER_ROUND = 0.4
"""Time that a round of one run takes at least."""


class RunBudget(NamedTuple):
    """Cost that one run may have."""

    quantity: Literal["seconds", "tokens", "FLOPs"]
    amount: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Return a budget from text: "5m", "90 s", "1.5 h", "10M tokens", "2e15 FLOPs".

        Raises:
          UserError: another text, or nothing to spend.
        """
        span, count = TIME.fullmatch(text.strip()), COUNT.fullmatch(text.strip())
        try:
            if span is not None:
                return cls._positive("seconds", float(span[1]) * SECONDS[span[2]])
            if count is not None:
                quantity: Literal["tokens", "FLOPs"] = "tokens" if count[3] == "tokens" else "FLOPs"
                return cls._positive(quantity, float(count[1]) * PREFIXES[count[2]])
        except ValueError:  # such as 1.2.3
            pass
        raise UserError(
            f"budget is '{text}'; expected a time, tokens or FLOPs: '5m', '90s', '10M tokens', '2e15 FLOPs'"
        )

    @classmethod
    def _positive(cls, quantity: Literal["seconds", "tokens", "FLOPs"], amount: float) -> Self:
        if not 0 < amount < float("inf"):
            raise ValueError(amount)
        return cls(quantity, amount)


@dataclasses.dataclass(frozen=True)
class EqualSeconds:
    """Rule of a comparison at equal seconds: a candidate trains for the steps that the best recipe's time allows.

    Beside `study.equal_cost.EqualCost`, whose costs follow from configs alone.

    Args:
      tolerance: largest relative difference in the time of training that is left as it is.
    """

    quantity: str = "seconds"
    adjust: tuple[str, ...] = (STEPS,)
    tolerance: float = 0.05


def with_budget(run: Run, text: str) -> Run:
    """Return a run whose number of steps is what a budget allows; the number of its evaluations stays.

    Time is that of the training steps of one run on the first device, without compilation and evaluation.

    Raises:
      UserError: another text than `RunBudget.of` reads, or not a step between two evaluations.
    """
    budget = RunBudget.of(text)
    if budget.quantity == "seconds":
        cost = seconds_per_step([run])[0]
        shown = f"{duration(cost)} per step" if cost >= 0.1 else f"{1000 * cost:.3g} ms per step"
    else:
        cost = run.tokens_per_step if budget.quantity == "tokens" else flops_per_step(run)
        shown = f"{with_prefix(cost, f' {budget.quantity}')} per step"
    return replace_at(run, _changes(run, budget.amount / cost, f"budget is '{text}', at {shown}"))


def equal_seconds(best: Run, candidate: Run, tolerance: float) -> dict[str, int]:
    """Return the fields, with their values, by which a candidate trains for as long as the best recipe.

    Nothing where these times differ by at most the tolerance; recipes with one program take equal times per step.

    Raises:
      UserError: the candidate is too slow for a step between two evaluations.
    """
    one_step = [replace_at(run, {STEPS: 1, EVALUATE_EVERY: None}) for run in (best, candidate)]
    is_same_program = len({*map(jax.tree.structure, one_step)}) == 1
    seconds = [1.0, 1.0] if is_same_program else seconds_per_step([best, candidate])
    steps = best.training.steps * seconds[0] / seconds[1]
    if abs(steps / candidate.training.steps - 1) <= tolerance:
        return {}
    return _changes(candidate, steps, f"at equal seconds, a step takes {seconds[1] / seconds[0]:.3g} × as long")


def _changes(run: Run, steps: float, why: str) -> dict[str, int]:
    """The changes to the largest number of steps that is allowed, as a multiple of the number of evaluations."""
    evaluations = run.training.steps // run.training.interval
    whole = int(steps) // evaluations * evaluations
    if whole == 0:
        raise UserError(
            f"{why}, which allows {int(steps)} steps; expected at least {evaluations}, the number of evaluations"
        )
    return changes_of_steps(run, whole)


def seconds_per_step(runs: Sequence[Run]) -> list[float]:
    """Return the seconds of a training step of each run on the first device, measured in turn: medians over rounds."""
    timed = [_Timed(run) for run in runs]
    rounds = [[run.seconds() for run in timed] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


class _Timed:
    """A run whose compiled steps are timed; it trains on, from one round to the next."""

    def __init__(self, run: Run) -> None:
        self.run, self.compiled = run, CompiledRun(run, DeviceGroup.of(None))
        self.state = self.compiled.start(run)
        self._train(1)
        self.steps = max(1, round(SECONDS_PER_ROUND / self._train(1)))
        self._train(self.steps)

    def _train(self, steps: int) -> float:
        """Train for so many steps, and return the seconds that they took."""
        began = time.perf_counter()
        for source, count in self.compiled.chunks(self.run, 0, steps, steps):
            self.state, metrics = self.compiled.advance(self.state, self.run, count, source)
            jax.block_until_ready(metrics)
        return time.perf_counter() - began

    def seconds(self) -> float:
        """Return the seconds of a step in a round."""
        return self._train(self.steps) / self.steps
