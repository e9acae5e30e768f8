"""Tests and intervals of the numbers of scaling laws, with the seeds as the sample.

A hypothesis fixes a number ψ(θ) of the parameters θ, such as the exponent, or the difference of two curves at some C.
Its test (`t_of_hypothesis`) fits θ under the hypothesis to the means over the seeds, and computes for each seed the
change of ψ that its residuals ask for, gᵀ(JᵀJ)⁻¹Jᵀ(y − μ), with the Jacobian J of the curve μ and the gradient g of ψ.
The mean of these is compared with 0 by Student's t with n − 1 degrees of freedom. An interval holds every hypothesis
that is not rejected; it is unbounded where the data do not bound it, as Fieller's is. For α the test is exact for
normal scores, however they are correlated between sizes and arms; for other numbers it is a score test, exact to first
order.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from flaxformer.statistics.scaling_law import Functional, Hypothesis, LawAtSizes, Matrix, Vector, minimise


@dataclasses.dataclass(frozen=True)
class LawEstimate:
    """An estimate with its 95 % interval; an end is infinite where the data do not bound it."""

    value: float
    low: float
    high: float


def changes_by_seed(theta: Vector, law: LawAtSizes, scores: Matrix, gradient: Vector) -> Vector:
    """Return for each seed the change of ψ that its residuals ask for, gᵀ(JᵀJ)⁻¹Jᵀ(y − μ); NaN where J or g overflows.

    Args:
      theta: parameters of the law.
      law: the law at the sizes of the scores.
      scores: scores with the seeds as rows, and the sizes of all arms as columns.
      gradient: gradient g of ψ.
    """
    mu, jacobian = law(theta)
    if not (np.isfinite(jacobian).all() and np.isfinite(gradient).all()):
        return np.full(len(scores), math.nan)
    return (scores - mu) @ np.linalg.lstsq(jacobian.T, gradient, rcond=None)[0]


def t_of(values: Vector) -> float:
    """Return Student's t of the mean of values, against 0; NaN without variance."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() / error) if error > 0 else math.nan


def critical_t(seeds: int, level: float = 0.05) -> float:
    """Return the two-sided critical value of Student's t with n − 1 degrees of freedom."""
    return float(special.stdtrit(seeds - 1, 1 - level / 2))


def standard_error(theta: Vector, law: LawAtSizes, scores: Matrix, functional: Functional) -> float:
    """Return the standard error of ψ over the seeds by the delta method."""
    changes = changes_by_seed(theta, law, scores, functional(theta)[1])
    return float(changes.std(ddof=1)) / math.sqrt(len(changes))


def t_of_hypothesis(hypothesis: Hypothesis, law: LawAtSizes, scores: Matrix, start: Vector) -> tuple[float, Vector]:
    """Return the t statistic of the hypothesis ψ(θ) = value, positive if ψ is larger, and the fit under it.

    Args:
      hypothesis: ψ and its value.
      law: the law at the sizes of the scores.
      scores: scores with the seeds as rows, and the sizes of all arms as columns.
      start: parameters with ψ near the value.
    """
    means = scores.mean(0)

    def residuals(theta: Vector) -> tuple[Vector, Matrix]:
        mu, jacobian = law(theta)
        return mu - means, jacobian

    theta = minimise(residuals, start, hypothesis)
    if not np.isfinite(theta).all():
        return math.nan, start
    return t_of(changes_by_seed(theta, law, scores, hypothesis[0](theta)[1])), theta


def interval_of(
    functional: Functional,
    law: LawAtSizes,
    scores: Matrix,
    theta: Vector,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    level: float = 0.05,
) -> tuple[float, float]:
    """Return the ends of all values of ψ that the t-test does not reject; infinite where nothing bounds them.

    Args:
      functional: ψ and its gradient.
      law: the law at the sizes of the scores.
      scores: scores with the seeds as rows, and the sizes of all arms as columns.
      theta: least-squares parameters of all curves.
      bounds: values of ψ beyond which an end counts as infinite.
      level: 1 − the coverage of the interval.
    """
    error = standard_error(theta, law, scores, functional)
    if not error > 0:
        return math.nan, math.nan

    def statistic(value: float, start: Vector) -> tuple[float, Vector]:
        return t_of_hypothesis((functional, value), law, scores, start)

    return acceptance_interval(statistic, functional(theta)[0], error, theta, len(scores), bounds, level)


def acceptance_interval(
    statistic: Callable[[float, Vector], tuple[float, Vector]],
    centre: float,
    error: float,
    start: Vector,
    seeds: int,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    level: float = 0.05,
) -> tuple[float, float]:
    """Return the ends of the values around a centre whose t statistic is below the critical one in size.

    Args:
      statistic: the t statistic of a value, and the fit under it, from which the next one starts.
      centre: the estimate.
      error: its standard error.
      start: its fit.
      seeds: number of seeds.
      bounds: values beyond which an end counts as infinite.
      level: 1 − the coverage of the interval.
    """
    critical = critical_t(seeds, level)
    return (
        _end(statistic, centre, error, start, critical, -1, bounds[0]),
        _end(statistic, centre, error, start, critical, 1, bounds[1]),
    )


def _end(
    statistic: Callable[[float, Vector], tuple[float, Vector]],
    centre: float,
    error: float,
    start: Vector,
    critical: float,
    side: int,
    bound: float,
) -> float:
    """The nearest value on one side at which t is critical; infinite beyond the bound or 100 standard errors."""
    inner, theta, step = centre, start, critical * error
    for _ in range(24):
        outer = centre + side * step
        if side * (outer - bound) >= 0:
            return side * math.inf
        t, fitted = statistic(outer, theta)
        if -side * t >= critical:
            break
        if math.isfinite(t):
            inner, theta = outer, fitted
        step *= 1.35
    else:
        return side * math.inf
    low, high = 0.0, -side * t - critical
    low = -side * statistic(inner, theta)[0] - critical
    for _ in range(40):  # the method of false position, in the form of Illinois
        middle = (inner * high - outer * low) / (high - low)
        t, theta = statistic(middle, theta)
        excess = -side * t - critical
        if not math.isfinite(excess):
            return side * math.inf
        if abs(excess) < 1e-6 or abs(outer - inner) < 1e-9 * (abs(middle) + error):
            return middle
        if excess > 0:
            outer, high, low = middle, excess, low / 2
        else:
            inner, low, high = middle, excess, high / 2
    return middle


def prediction_interval(
    theta: Vector, law: LawAtSizes, beyond: LawAtSizes, scores: Matrix, held_out: Vector, level: float = 0.05
) -> tuple[float, float, float]:
    """Return the prediction of the mean of a held-out size over the same seeds, and its (1 − level) interval.

    The interval has every mean that the law, fitted to all sizes, would not reject at the held-out size; it covers the
    noise of the held-out runs too.

    Args:
      theta: least-squares parameters of the law at the fitted sizes.
      law: the law at the fitted sizes.
      beyond: the law at the held-out size.
      scores: scores of the fitted sizes, the seeds as rows.
      held_out: score of the held-out size at each seed.
      level: 1 − the coverage of the interval.
    """

    def every(theta: Vector) -> tuple[Vector, Matrix]:
        """The law at the fitted sizes, and then at the held-out one."""
        (mu, jacobian), (last, gradient) = law(theta), beyond(theta)
        return np.append(mu, last), np.vstack([jacobian, gradient])

    [predicted], [gradient] = beyond(theta)
    predicted, unit = float(predicted), np.append(np.zeros(scores.shape[1]), 1.0)
    outer_changes = held_out - predicted - changes_by_seed(theta, law, scores, gradient)
    centre, error = float(held_out.mean()) - predicted, float(outer_changes.std(ddof=1)) / math.sqrt(len(scores))
    if not error > 0:
        return predicted, math.nan, math.nan

    def statistic(shift: float, start: Vector) -> tuple[float, Vector]:
        shifted = np.column_stack([scores, held_out - shift])
        means = shifted.mean(0)

        def residuals(theta: Vector) -> tuple[Vector, Matrix]:
            mu, jacobian = every(theta)
            return mu - means, jacobian

        fitted = minimise(residuals, start)
        mu, jacobian = every(fitted)
        weights = np.linalg.lstsq(np.column_stack([jacobian, unit]).T, np.append(np.zeros(len(theta)), 1.0), rcond=None)
        return t_of((shifted - mu) @ weights[0]), fitted

    low, high = acceptance_interval(statistic, centre, error, theta, len(scores), level=level)
    mean = float(held_out.mean())
    return predicted, mean - high, mean - low


def misfit_p(theta: Vector, law: LawAtSizes, scores: Matrix) -> float:
    """Return the p-value of Hotelling's T² test that the residuals of the law are 0 at every size.

    NaN without a size more than the law has parameters, or without more seeds than such sizes.
    """
    n, freedom = len(scores), scores.shape[1] - len(theta)
    if freedom < 1 or n <= freedom:
        return math.nan
    mu, jacobian = law(theta)
    complement = np.linalg.svd(jacobian)[0][:, len(theta) :]
    residuals = (scores - mu) @ complement
    covariance = np.atleast_2d(np.cov(residuals, rowvar=False))
    mean = residuals.mean(0)
    if np.linalg.matrix_rank(covariance) < freedom:
        return math.nan
    t2 = float(n * mean @ np.linalg.solve(covariance, mean))
    return float(special.fdtrc(freedom, n - freedom, t2 * (n - freedom) / (freedom * (n - 1))))
