"""Fit of the joint law in parameters and tokens to one arm: what is identified, and what is not, with the reason.

The seeds are the sample. By least squares of raw losses, intervals invert the tests of `scaling_tests`; by a
loss of log residuals, which Huber's is by default, they come from resampled seeds (`seed_bootstrap`).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from flaxformer.analysis.scaling_fit import (
    HeldOut,
    MetricRange,
    SizePoint,
    amplitude_of,
    at_its_bound,
    no_trend,
    unbounded_exponent,
    usable_seeds,
)
from flaxformer.statistics import joint_law, scaling_tests
from flaxformer.statistics.judgement import FEWEST_SEEDS
from flaxformer.statistics.law_losses import DESCRIPTIONS, LawLoss, is_logarithmic
from flaxformer.statistics.scaling_law import STEEPEST, Functional, LawAtSizes, Matrix, Vector
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.statistics.seed_bootstrap import resampled_means, widened_interval
from flaxformer.store.declaration import Labels
from flaxformer.system.wording import count_of

NAMES = ("parameters", "tokens")
FEWEST_SIZES = 6
"""Number of different sizes below which a study has no joint law: one more than the law has parameters."""
FEWEST_LEVELS = 3
"""Number of different N, and of different D, below which no law is fitted."""
LEAST_RANGE = 4.0
"""Ratio of the largest N to the smallest, and of D, below which no law is fitted: two doublings."""
MOST_CORRELATION = 0.95
"""Correlation of log N and log D above which their effects are not told apart."""


@dataclasses.dataclass(frozen=True)
class JointPoint(SizePoint):
    """One size of an arm: `size` is its number of parameters, N."""

    tokens: float
    """D."""


@dataclasses.dataclass(frozen=True)
class JointFit:
    """Joint law of one arm, L = L∞ + A·N^(−α) + B·D^(−β).

    Without `theta`, `reason` says why no law was fitted. With it, predictions exist; if `reason` is not empty, the
    numbers are nevertheless not identified, and are missing.
    """

    labels: Labels
    points: Sequence[JointPoint]
    seeds: tuple[int, ...] = ()
    """Seeds of the fit: those at which every fitted size has a run that did not diverge."""
    loss: LawLoss = "huber"
    """The loss that was minimised."""
    units: tuple[float, float] = (1.0, 1.0)
    """N₀ and D₀ of the parameters."""
    theta: Vector | None = None
    """p, q, α, r and β of the law."""
    scores: Matrix | None = None
    """Scores of the fit: seeds as rows, fitted sizes as columns."""
    reason: str = ""
    """Clause on why the numbers are not identified; empty if they are."""
    numbers: Mapping[str, LawEstimate] = dataclasses.field(default_factory=dict)
    """α, A, β, B, L∞, and a, the exponent of the best N in C ∝ N·D, each with its interval."""
    misfit_p: float = math.nan
    """p-value of the test that the law describes the fitted sizes (Hotelling's T²)."""
    held_out: tuple[HeldOut, ...] = ()

    @property
    def fitted_points(self) -> list[JointPoint]:
        """Sizes of the fit."""
        return [point for point in self.points if not point.is_held_out]

    def curve_at(self, size: float, tokens: Vector) -> Vector:
        """Return the fitted law at N = size and some D."""
        assert self.theta is not None, "no law was fitted"
        x = np.full(len(tokens), math.log(size / self.units[0]))
        return joint_law.law_at(x, np.log(tokens / self.units[1]))(self.theta)[0]

    def law_of(self, points: Sequence[JointPoint]) -> LawAtSizes:
        """Return the law at some sizes."""
        return joint_law.law_at(*_places(self, points))


def fit_jointly(
    labels: Labels,
    points: Sequence[JointPoint],
    declared: Sequence[int],
    metric: MetricRange,
    loss: LawLoss = "huber",
) -> JointFit:
    """Fit the joint law to one arm.

    Args:
      labels: labels of the arm on the axes other than that over sizes.
      points: its sizes, with at least `FEWEST_SIZES` different pairs of parameters and tokens.
      declared: seeds of the study.
      metric: range of the metric.
      loss: what is minimised.
    """
    fit = JointFit(labels, points, loss=loss)
    fitted = fit.fitted_points
    if reason := _too_few(fitted):
        return dataclasses.replace(fit, reason=reason)
    used = usable_seeds(fitted, range(len(declared)))
    if len(used) < FEWEST_SEEDS:
        missing = (
            f"{len(used)} of {count_of(len(declared), 'seed')} finished without divergence, and with a finite score, "
            f"at every fitted size; at least {FEWEST_SEEDS} are needed"
        )
        return dataclasses.replace(fit, reason=missing)
    scores = np.array([[point.arm.scores[i] for point in fitted] for i in used], float)
    units = (_middle([point.size for point in fitted]), _middle([point.tokens for point in fitted]))
    fit = dataclasses.replace(fit, seeds=tuple(declared[i] for i in used), units=units, scores=scores)
    if float(scores.std(0).max()) <= 1e-9 * float(np.abs(scores).max()):
        return dataclasses.replace(fit, reason="all seeds have the same scores, so that no interval exists")
    x, y = _places(fit, fitted)
    slopes = np.linalg.lstsq(np.column_stack([np.ones_like(x), x, y]), scores.T, rcond=None)[0][1:]
    for name, per_seed in zip(NAMES, slopes, strict=True):
        if reason := no_trend(per_seed, metric, name):
            return dataclasses.replace(fit, reason=reason)
    if is_logarithmic(loss) and not (scores > 0).all():
        reason = f"scores are not all above 0, and {DESCRIPTIONS[loss]} are minimised; declare loss='squares'"
        return dataclasses.replace(fit, reason=reason)
    theta, plain = joint_law.fit(x, y, scores.mean(0), loss), joint_law.fit(x, y, scores.mean(0), "squares")
    fit = dataclasses.replace(fit, theta=theta, misfit_p=scaling_tests.misfit_p(plain, fit.law_of(fitted), scores))
    held_out = tuple(_held_out(fit, point, used, theta, scores) for point in points if point.is_held_out)
    return _with_numbers(dataclasses.replace(fit, held_out=held_out), theta, scores, metric)


def _too_few(points: Sequence[JointPoint]) -> str:
    """The reason why sizes do not determine a law, whatever their runs give; else nothing."""
    pairs = {(point.size, point.tokens) for point in points}
    for place, name in enumerate(NAMES):
        values = {pair[place] for pair in pairs}
        if len(values) < FEWEST_LEVELS:
            n = count_of(len(values), "different number")
            return f"the fitted runs have {n} of {name}; expected at least {FEWEST_LEVELS}"
        if (ratio := max(values) / min(values)) < LEAST_RANGE:
            return (
                f"the largest fitted run has {ratio:.3g} times the {name} of the smallest; expected at least "
                f"{LEAST_RANGE:g} times"
            )
    correlation = float(np.corrcoef(np.log([*pairs]).T)[0, 1])
    if abs(correlation) > MOST_CORRELATION:
        return (
            f"parameters and tokens change together (the correlation of their logarithms is {correlation:.3f}; "
            f"expected at most {MOST_CORRELATION})"
        )
    return ""


def _middle(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def _places(fit: JointFit, points: Sequence[JointPoint]) -> tuple[Vector, Vector]:
    """log(N / N₀) and log(D / D₀) of some sizes."""
    sizes = np.array([(point.size, point.tokens) for point in points])
    x, y = np.log(sizes / fit.units).T
    return x, y


def _held_out(fit: JointFit, point: JointPoint, used: Sequence[int], theta: Vector, scores: Matrix) -> HeldOut:
    """The prediction of a held-out size at the seeds of the fit that have a result there."""
    there, fitted = [row for row, i in enumerate(used) if usable_seeds([point], [i])], _places(fit, fit.fitted_points)
    ([x], [y]) = _places(fit, [point])
    if len(there) < FEWEST_SEEDS:
        value = estimates(*fitted, scores, theta, fit.loss)(functools.partial(joint_law.value_at, x=x, y=y))
        return HeldOut(point, value, math.nan)
    observed = np.array([point.arm.scores[used[row]] for row in there], float)
    return HeldOut(point, predicted_mean(*fitted, scores[there], (x, y), observed, fit.loss), float(observed.mean()))


class Estimates(Protocol):
    """Function from a number of the law to its estimate with its interval."""

    def __call__(self, functional: Functional, most: float = math.inf) -> LawEstimate:
        """Return the estimate; an end beyond ± `most` is infinite."""


def estimates(x: Vector, y: Vector, scores: Matrix, theta: Vector, loss: LawLoss) -> Estimates:
    """Return the estimates of numbers of a law with 95 % intervals, by the tests or the resamples of its loss.

    Args:
      x, y: log(N / N₀) and log(D / D₀) of the fitted sizes.
      scores: scores with the seeds as rows.
      theta: the fitted law.
      loss: what it minimises.
    """

    def estimate_by_test(functional: Functional, most: float = math.inf) -> LawEstimate:
        ends = scaling_tests.interval_of(functional, joint_law.law_at(x, y), scores, theta, (-most, most))
        return LawEstimate(functional(theta)[0], *ends)

    if loss == "squares":
        return estimate_by_test
    thetas = resampled_laws(x, y, scores, theta, loss)

    def estimate_by_resampling(functional: Functional, most: float = math.inf) -> LawEstimate:
        values = np.array([functional(law)[0] for law in thetas])
        low, high = widened_interval(functional(theta)[0], values, len(scores))
        return LawEstimate(functional(theta)[0], low if low > -most else -math.inf, high if high < most else math.inf)

    return estimate_by_resampling


def predicted_mean(
    x: Vector, y: Vector, scores: Matrix, place: tuple[float, float], held_out: Vector, loss: LawLoss
) -> LawEstimate:
    """Return the prediction of the mean of a held-out size, with an interval that covers the noise of its runs too.

    Args:
      x, y, scores, loss: see `estimates`.
      place: log(N / N₀) and log(D / D₀) of the held-out size.
      held_out: its score at each seed.
    """
    theta = joint_law.fit(x, y, scores.mean(0), loss)
    if loss == "squares":
        law, beyond = joint_law.law_at(x, y), joint_law.law_at(*(np.array([coordinate]) for coordinate in place))
        return LawEstimate(*scaling_tests.prediction_interval(theta, law, beyond, scores, held_out))
    value, mean = joint_law.value_at(theta, *place)[0], float(held_out.mean())
    laws = resampled_laws(x, y, scores, theta, loss)
    gaps = resampled_means(held_out[:, None])[:, 0] - np.array([joint_law.value_at(law, *place)[0] for law in laws])
    low, high = widened_interval(mean - value, gaps, len(held_out))
    return LawEstimate(value, mean - high, mean - low)


def resampled_laws(x: Vector, y: Vector, scores: Matrix, theta: Vector, loss: LawLoss) -> Matrix:
    """Return the laws [resamples, 5] of resampled seeds, from the law of all of them."""
    means = resampled_means(scores)
    return joint_law.refit(x, y, means, np.tile(theta, (len(means), 1)), loss)[0]


def _with_numbers(fit: JointFit, theta: Vector, scores: Matrix, metric: MetricRange) -> JointFit:
    """The fit with its numbers, or with the reason why they are not identified."""
    estimate = estimates(*_places(fit, fit.fitted_points), scores, theta, fit.loss)
    exponents = {"α": estimate(joint_law.alpha_of, STEEPEST), "β": estimate(joint_law.beta_of, STEEPEST)}
    for (symbol, exponent), size in zip(exponents.items(), "ND", strict=True):
        if not (exponent.low > 0 and math.isfinite(exponent.high)):
            return dataclasses.replace(fit, reason=unbounded_exponent(exponent.low, exponent.high, symbol, size))
    limit = estimate(joint_law.limit_of)
    if reason := at_its_bound(limit.value, metric):
        return dataclasses.replace(fit, reason=reason)
    amplitudes = [
        functools.partial(joint_law.log_amplitude_of, log_unit=math.log(unit), is_of_tokens=is_of_tokens)
        for is_of_tokens, unit in zip((False, True), fit.units, strict=True)
    ]
    numbers = {
        "α": exponents["α"],
        "A": amplitude_of(estimate(amplitudes[0]), theta[1]),
        "β": exponents["β"],
        "B": amplitude_of(estimate(amplitudes[1]), theta[3]),
        "L∞": LawEstimate(limit.value, max(limit.low, metric.low), min(limit.high, metric.high)),
        "a": estimate(joint_law.allocation_of),
    }
    return dataclasses.replace(fit, numbers=numbers)
