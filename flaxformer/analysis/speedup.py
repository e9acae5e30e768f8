"""Effective speed-up: the cost that the baseline needs for the final score of an arm, divided by the cost of the arm.

For each seed, the baseline's learning curve is replaced by the best score so far, and interpolated between two
evaluations, linearly in the logarithm of the step, since learning curves are steep at first. With the cost c at which
it reaches the final score of the arm, and the cost c_arm of the arm's training, the speed-up is c / c_arm: above 1, the
arm gets there more cheaply. The mean and its interval are those of the logarithms over the seeds; the interval is that
which the test of a claim would use (`statistics.judge_difference`).

Between two evaluations the curve is not known. The interval is therefore widened, on each side by the mean distance in
log c from the interpolated cost to the evaluation, so that it covers every curve that falls between them. Where the
target is reached before the first evaluation of training, or with fewer than `FEWEST_NEAR` evaluations at steps within
a factor of `NEAR` of it, there is no speed-up.

At the final score of the better arm, the speed-up is known only if the other one was trained for longer. `SpeedUps` has
it at both final scores, of which one is reached by both arms: at the baseline's, it is the baseline's cost divided by
the cost at which the arm reaches that score.

A baseline that never reaches the score has a speed-up above (its whole cost) / c_arm; an arm that ends no better than
the untrained baseline has a speed-up of 0. Such seeds are censored: the mean is then a bound, and has no interval.

The curve of the baseline is that of one training, whose learning rate is still high where the curve is read. A training
that is planned to be as short would be better there, so that a speed-up above 1 is an upper estimate.

Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", for loss against compute; the ratio at equal loss
is the "compute multiplier" of later work.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from flaxformer.analysis.arms import ArmSummary, reference_arm, seconds_of
from flaxformer.statistics.estimates import Estimate, estimate
from flaxformer.statistics.judgement import judge_difference
from flaxformer.store.declaration import QUANTITY, Declaration
from flaxformer.store.rows import Row
from flaxformer.study.divergence import LOSS, curve_of, on_validation, score
from flaxformer.study.halving import Goal, goal_of
from flaxformer.system.wording import count_of

KNOWN = ("validation_loss", "validation_accuracy")
"""Metrics with a direction; for another metric, a study has to declare `goal`, or the validation loss is used."""
MOST_COMPARED = 100
"""Number of arms up to which each is compared with the baseline."""
FEWEST_NEAR = 3
"""Number of evaluations near the target below which no speed-up is read off a curve."""
NEAR = 4.0
"""Ratio of steps up to which an evaluation is near the target."""
Resource = Literal["compute", "time"]
Costs = Callable[[Row], list[float]]
"""Function that returns the cost of a run up to each of its evaluations."""


@dataclasses.dataclass(frozen=True)
class SpeedUp:
    """Effective speed-up of an arm over a baseline, over the seeds that both have."""

    log: Estimate
    """Mean of the natural logarithm, with its interval; with censored seeds, a bound without an interval."""
    above: int
    """Number of seeds at which the baseline never reaches the score of the arm."""
    below: int
    """Number of seeds at which the arm ends no better than the baseline before training."""
    reason: str = ""
    """Clause on why the speed-up is not read off the curves; `log` is then empty."""

    @property
    def ratio(self) -> float:
        """Geometric mean of the speed-ups; a lower bound with `above`, an upper bound with `below`."""
        return math.exp(self.log.mean) if self.log.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the geometric mean; NaN for a single seed or with censored seeds."""
        return math.exp(self.log.low), math.exp(self.log.high)

    @property
    def inverse(self) -> "SpeedUp":
        """The speed-up of the other arm over this one."""
        log = dataclasses.replace(self.log, mean=-self.log.mean, low=-self.log.high, high=-self.log.low)
        return SpeedUp(log, self.below, self.above, self.reason)


@dataclasses.dataclass(frozen=True)
class Reached:
    """Cost at which a curve reaches a target, and the costs of the evaluations before and after it."""

    cost: float
    """Infinite if the target is never reached; the first cost, which is 0, if it is reached before training."""
    low: float
    high: float
    near: int
    """Number of evaluations of training near the target."""

    @property
    def is_known(self) -> bool:
        """True if the cost needs no interpolation, or has enough evaluations near it for one."""
        return self.low == self.high or (self.low > 0 and self.near >= FEWEST_NEAR)


def reach(costs: Sequence[float], scores: Sequence[float], target: float, goal: Goal = "lower") -> Reached:
    """Return the cost at which the best score so far reaches a target.

    Args:
      costs: increasing costs of the evaluations.
      scores: score at each of them.
      target: score to reach.
      goal: the direction in which a score is good.
    """
    sign = 1.0 if goal == "lower" else -1.0
    best = list(itertools.accumulate((sign * score for score in scores), min))
    target = sign * target
    if target >= best[0]:
        return Reached(costs[0], costs[0], costs[0], 0)
    for (before, after), (low, high) in zip(itertools.pairwise(best), itertools.pairwise(costs), strict=True):
        if after == target:
            return Reached(high, high, high, 0)
        if after < target:
            near = sum(high / NEAR <= cost <= high * NEAR for cost in costs if cost > 0)
            fraction = (before - target) / (before - after)
            return Reached(low ** (1 - fraction) * high**fraction if low > 0 else high, low, high, near)
    return Reached(math.inf, math.inf, math.inf, 0)


def compute_of(row: Row) -> list[float]:
    """Return the FLOPs up to each evaluation of a run."""
    return [(row.flops_per_step or 0.0) * step for step in row.evaluated_at or ()]


def time_of(row: Row) -> list[float]:
    """Return the seconds up to each evaluation of a run, at an even pace."""
    steps = list(row.evaluated_at or ())
    return [seconds_of(row) * step / max(steps[-1], 1) for step in steps]


COSTS: dict[Resource, Costs] = {"compute": compute_of, "time": time_of}


def speed_up(
    arm: ArmSummary, baseline: ArmSummary, metric: str = LOSS, goal: Goal = "lower", resource: Resource = "compute"
) -> SpeedUp | None:
    """Return the effective speed-up of an arm over a baseline, paired by seed.

    None where it is not known: no seed has both runs with their curves and costs; or, for time, the runs were trained
    on different devices or with other numbers of runs together, so that their seconds do not compare. Where a curve has
    too few evaluations near a target, the speed-up has a reason and no number.

    Args:
      arm: the arm whose final score is to be reached.
      baseline: the arm whose learning curve is read.
      metric: a metric with a curve, such as "validation_loss".
      goal: the direction in which the metric is good.
      resource: cost in FLOPs ("compute") or in seconds ("time").
    """
    pairs = _usable_pairs(arm, baseline, metric)
    if not pairs or (resource == "time" and not _are_timed_alike(pairs)):
        return None
    logs, crossings, above, below = [], [], 0, 0
    for arm_row, baseline_row in pairs:
        costs, whole = COSTS[resource](baseline_row), COSTS[resource](arm_row)[-1]
        target, curve = score(arm_row, metric), curve_of(baseline_row, metric)
        known = [(cost, value) for cost, value in zip(costs, curve, strict=True) if value is not None]
        if target is None or not known:
            continue
        crossings.append(crossing := reach([cost for cost, _ in known], [value for _, value in known], target, goal))
        above, below = above + math.isinf(crossing.cost), below + (crossing.cost == 0)
        bound = costs[-1] if math.isinf(crossing.cost) else crossing.cost or costs[1]
        logs.append(math.log(bound / whole))
    if unknown := [crossing for crossing in crossings if not crossing.is_known]:
        return SpeedUp(estimate([]), above, below, _too_few(unknown))
    effect = judge_difference(logs).effect
    if above or below:
        mean = math.nan if above and below else effect.mean
        effect = Estimate(mean, math.nan, math.nan, effect.sd, effect.n)
    return SpeedUp(_widen(effect, crossings), above, below)


def speed_up_of_a_step(arm: ArmSummary, baseline: ArmSummary, metric: str = LOSS) -> SpeedUp | None:
    """Return the seconds per step of a baseline divided by those of an arm, paired by seed; None where not known.

    It is known where both were trained on the same kind of device, with as many runs together.
    """
    pairs = _usable_pairs(arm, baseline, metric)
    if not pairs or not _are_timed_alike(pairs):
        return None
    paces = [[seconds_of(row) / max((row.evaluated_at or (1,))[-1], 1) for row in pair] for pair in pairs]
    return SpeedUp(judge_difference([math.log(slow / fast) for fast, slow in paces]).effect, 0, 0)


def _usable_pairs(arm: ArmSummary, baseline: ArmSummary, metric: str) -> list[tuple[Row, Row]]:
    """The runs of an arm and of a baseline at each seed that has both, with their curves and costs."""
    return [
        (arm_row, baseline_row)
        for arm_row, baseline_row in zip(arm.rows, baseline.rows, strict=True)
        if arm_row is not None and baseline_row is not None
        if _is_usable(arm_row, metric) and _is_usable(baseline_row, metric)
    ]


def _are_timed_alike(pairs: Sequence[tuple[Row, Row]]) -> bool:
    """True if the seconds of runs compare: on devices of one kind, with as many runs together."""
    rows = [row for pair in pairs for row in pair]
    return len({(_kind(row.device), row.group_size) for row in rows}) == 1 and min(map(seconds_of, rows)) > 0


def _too_few(unknown: Sequence[Reached]) -> str:
    """The reason why a speed-up is not read off curves that were evaluated too rarely."""
    fewest = min(unknown, key=lambda crossing: (crossing.low > 0, crossing.near))
    where = (
        f"{count_of(fewest.near, 'evaluation')} of training within a factor of {NEAR:g} of the step that reaches it"
        if fewest.low > 0
        else "no evaluation between the untrained model and the step that reaches it"
    )
    more = f"at least {FEWEST_NEAR} are needed" if fewest.low > 0 else "one is needed"
    return f"{where}, and {more}: evaluate more often (training.evaluate_every)"


def _widen(effect: Estimate, crossings: Sequence[Reached]) -> Estimate:
    """The interval of the mean, widened by the mean distances in log cost to the evaluations around each target."""
    known = [crossing for crossing in crossings if 0 < crossing.cost < math.inf]
    if not known:
        return effect
    down, up = (
        sum(abs(math.log(crossing.cost / end)) for crossing, end in zip(known, ends, strict=True)) / len(known)
        for ends in ([crossing.low for crossing in known], [crossing.high for crossing in known])
    )
    return dataclasses.replace(effect, low=effect.low - down, high=effect.high + up)


def _kind(device: str | None) -> str:
    """The kind of a device, without its number."""
    return re.sub(r"\d+", "", device or "")


def _is_usable(row: Row, metric: str) -> bool:
    """True for a run that ended, with a cost and a learning curve of at least two evaluations."""
    has_curve = len(row.curves.get(metric, ())) > 1 and len(row.evaluated_at or ()) > 1
    return row.status in ("done", "diverged") and bool(row.flops) and has_curve


@dataclasses.dataclass(frozen=True)
class SpeedUps:
    """Effective speed-ups of one arm over another, in compute and in time, at two scores."""

    arm: ArmSummary
    baseline: ArmSummary
    compute: SpeedUp
    """Compute that the baseline needs for the final score of the arm, divided by that of the arm's training."""
    compute_to_baseline: SpeedUp
    """Compute of the baseline's training, divided by that which the arm needs for the final score of the baseline."""
    time: SpeedUp | None
    time_to_baseline: SpeedUp | None
    metric: str
    """Metric whose curves were read."""


def at_common_score(*speed_ups: SpeedUp | None) -> SpeedUp | None:
    """Return the first of some speed-ups that is known, with an interval: that to a score which both arms reach."""
    return next((up for up in speed_ups if up is not None and not (up.reason or up.above or up.below)), None)


def metric_and_goal(study: Declaration) -> tuple[str, Goal]:
    """Return the metric whose curve is read, and its direction: the study's own, where it has a direction."""
    metric = on_validation(study.metric)
    if metric in KNOWN or study.goal:
        return metric, goal_of(metric, study.goal)
    return LOSS, "lower"


def compare_arms(study: Declaration, arm: ArmSummary, baseline: ArmSummary) -> SpeedUps | None:
    """Return the speed-ups of an arm by the metric of a study; None where they are not known."""
    metric, goal = metric_and_goal(study)
    compute, reverse = (speed_up(*pair, metric, goal) for pair in ((arm, baseline), (baseline, arm)))
    if compute is None or reverse is None:
        return None
    time, slower = (speed_up(*pair, metric, goal, "time") for pair in ((arm, baseline), (baseline, arm)))
    return SpeedUps(arm, baseline, compute, reverse.inverse, time, slower and slower.inverse, metric)


def speed_ups(study: Declaration, arms: Sequence[ArmSummary]) -> Iterator[SpeedUps]:
    """Yield the speed-ups of every arm over the baseline's, then the speed-ups of other pairs that claims compare.

    A study of more than `MOST_COMPARED` arms has the speed-ups of its claims alone.
    """
    reference = reference_arm(study.axes, arms)
    if reference is None or reference.cost is None:
        return
    pairs = [(arm, reference) for arm in arms if arm is not reference] if len(arms) <= MOST_COMPARED else []
    for claim in study.claims:
        if len(claim.terms) == 2 and not any(QUANTITY in labels for _, labels in claim.terms):
            compared = [next((arm for arm in arms if arm.labels == labels), None) for _, labels in claim.terms]
            if compared[0] is not None and compared[1] is not None and compared[0] is not reference:
                pairs.append((compared[0], compared[1]))
    seen = set()
    for arm, baseline in pairs:
        if (id(arm), id(baseline)) not in seen and (comparison := compare_arms(study, arm, baseline)) is not None:
            yield comparison
        seen.add((id(arm), id(baseline)))
