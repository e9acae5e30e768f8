"""Fit of a scaling law to one arm: what is identified, with intervals over seeds, and what is not, with the reason."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from flaxformer.analysis.arms import ArmSummary
from flaxformer.statistics import scaling_law, scaling_tests
from flaxformer.statistics.judgement import FEWEST_SEEDS
from flaxformer.statistics.scaling_law import LawAtSizes, Matrix, Vector
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.store.declaration import Labels
from flaxformer.study.divergence import is_diverged
from flaxformer.study.scale import VARIABLE_NAMES
from flaxformer.system.wording import count_of

FEWEST_SIZES = 4
"""Number of different sizes below which no law is fitted: one more than it has parameters."""
LEAST_RANGE = 8.0
"""Ratio of the largest size to the smallest below which no law is fitted: three doublings."""
FARTHEST = 10.0
"""Factor beyond the largest size at which effects are predicted."""


@dataclasses.dataclass(frozen=True)
class SizePoint:
    """One size of an arm."""

    label: str
    size: float
    """C: FLOPs, parameters or tokens."""
    arm: ArmSummary
    is_held_out: bool


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Prediction of the mean of a held-out size, and whether its runs agree."""

    point: SizePoint
    predicted: LawEstimate
    """Its interval covers the noise of the held-out runs; without results, that of the law alone."""
    observed: float
    """Mean over the seeds of the fit; NaN without results."""

    @property
    def is_inside(self) -> bool | None:
        """True if the observed mean is inside the interval; None without results or without an interval."""
        if math.isnan(self.observed) or math.isnan(self.predicted.low):
            return None
        return self.predicted.low <= self.observed <= self.predicted.high


@dataclasses.dataclass(frozen=True)
class ScalingFit:
    """Law of one arm, L = L∞ + A·C^(−α).

    Without a curve, `reason` says why none was fitted. With one, predictions exist; if `reason` is not empty, the
    parameters are nevertheless not identified, and are None.
    """

    labels: Labels
    variable: str
    points: Sequence[SizePoint]
    seeds: tuple[int, ...] = ()
    """Seeds of the fit: those at which every fitted size has a run that did not diverge."""
    unit: float = 1.0
    """C₀ of the parameters p, q and α."""
    theta: Vector | None = None
    """p, q and α of the curve; None without one."""
    scores: Matrix | None = None
    """Scores of the fit: seeds as rows, fitted sizes as columns."""
    reason: str = ""
    """Clause on why the parameters are not identified; empty if they are."""
    exponent: LawEstimate | None = None
    amplitude: LawEstimate | None = None
    limit: LawEstimate | None = None
    misfit_p: float = math.nan
    """p-value of the test that the law describes the fitted sizes (Hotelling's T²)."""
    held_out: tuple[HeldOut, ...] = ()

    @property
    def fitted_points(self) -> list[SizePoint]:
        """Sizes of the fit."""
        return [point for point in self.points if not point.is_held_out]

    @property
    def places(self) -> Vector:
        """log(C / C₀) of the fitted sizes."""
        return np.log([point.size / self.unit for point in self.fitted_points])

    @property
    def law(self) -> LawAtSizes:
        """The law at the fitted sizes."""
        return scaling_law.law_at(self.places)

    def value_at(self, size: float) -> LawEstimate:
        """Return the metric that the law gives at a size, with its interval; only with a curve."""
        if self.theta is None or self.scores is None:
            return LawEstimate(math.nan, math.nan, math.nan)
        functional = functools.partial(scaling_law.value_at, x=math.log(size / self.unit))
        ends = scaling_tests.interval_of(functional, self.law, self.scores, self.theta)
        return LawEstimate(functional(self.theta)[0], *ends)

    def curve_at(self, sizes: Vector) -> Vector:
        """Return the metric that the law gives at several sizes; only with a curve."""
        if self.theta is None:
            return np.full(len(sizes), math.nan)
        return scaling_law.curves(self.theta, [np.log(np.asarray(sizes) / self.unit)])[0]


@dataclasses.dataclass(frozen=True)
class MetricRange:
    """Direction in which a metric is good, and the values that it can have in the limit of large C."""

    is_lower: bool | None
    """True if it falls with C, False if it rises, None if either may be."""
    low: float = -math.inf
    high: float = math.inf


def range_of(metric: str, goal: str | None) -> MetricRange:
    """Return the range of a metric: a loss is at least 0, an accuracy between 0 and 1, any other number unbounded."""
    if metric.endswith(("_loss", "_bits_per_byte")):
        return MetricRange(True, low=0.0)
    if metric.endswith("_accuracy"):
        return MetricRange(False, low=0.0, high=1.0)
    return MetricRange(None if goal is None else goal == "lower")


def fit_arm(
    labels: Labels, variable: str, points: Sequence[SizePoint], declared: Sequence[int], metric: MetricRange
) -> ScalingFit:
    """Fit the law to one arm.

    Args:
      labels: labels of the arm on the axes other than that over sizes.
      variable: "flops", "parameters" or "tokens".
      points: its sizes by increasing C.
      declared: seeds of the study.
      metric: range of the metric.
    """
    fit = ScalingFit(labels, variable, points)
    fitted, name = fit.fitted_points, VARIABLE_NAMES[variable]
    sizes = [point.size for point in fitted]
    if len(set(sizes)) < FEWEST_SIZES or min(sizes) <= 0:
        n = len({size for size in sizes if size > 0})
        return dataclasses.replace(
            fit,
            reason=f"the fitted runs have {count_of(n, 'different number')} of {name}, and a law with "
            f"{scaling_law.PARAMETERS} parameters needs at least {FEWEST_SIZES}",
        )
    if max(sizes) / min(sizes) < LEAST_RANGE:
        return dataclasses.replace(
            fit,
            reason=f"the largest fitted run has {max(sizes) / min(sizes):.3g} times the {name} of the smallest; "
            f"expected at least {LEAST_RANGE:g} times",
        )
    used = usable_seeds(fitted, range(len(declared)))
    if len(used) < FEWEST_SEEDS:
        return dataclasses.replace(
            fit,
            reason=f"{len(used)} of {count_of(len(declared), 'seed')} finished without divergence, and with a finite "
            f"score, at every fitted size; at least {FEWEST_SEEDS} are needed",
        )
    scores = np.array([[point.arm.scores[i] for point in fitted] for i in used], float)
    unit = math.exp(float(np.mean(np.log(sizes))))
    fit = dataclasses.replace(fit, seeds=tuple(declared[i] for i in used), unit=unit, scores=scores)
    if float(scores.std(0).max()) <= 1e-9 * float(np.abs(scores).max()):
        return dataclasses.replace(fit, reason="all seeds have the same scores, so that no interval exists")
    slopes = np.polyfit(fit.places, scores.T, 1)[0]
    if reason := no_trend(slopes, metric, name):
        return dataclasses.replace(fit, reason=reason)
    theta = scaling_law.fit(fit.places, scores.mean(0))
    misfit = scaling_tests.misfit_p(theta, fit.law, scores)
    fit = dataclasses.replace(fit, theta=theta, misfit_p=misfit)
    held_out = tuple(_held_out(fit, point, used) for point in points if point.is_held_out)
    return _with_parameters(dataclasses.replace(fit, held_out=held_out), metric)


def usable_seeds(points: Sequence[SizePoint], seeds: Sequence[int]) -> list[int]:
    """Return the places of the seeds at which every size has a score of a run that did not diverge."""

    def is_usable(point: SizePoint, i: int) -> bool:
        row = point.arm.rows[i]
        return point.arm.scores[i] is not None and row is not None and not is_diverged(row)

    return [i for i in seeds if all(is_usable(point, i) for point in points)]


def no_trend(slopes: Vector, metric: MetricRange, name: str) -> str:
    """Return the reason if the metric does not change with size in the direction in which it is good; else nothing.

    Args:
      slopes: slope of the metric in the logarithm of the size, at each seed.
      metric: range of the metric.
      name: name of the size.
    """
    t, critical = scaling_tests.t_of(slopes), scaling_tests.critical_t(len(slopes))
    if not abs(t) > critical:
        return f"the seeds show no change of the metric with {name}"
    is_wrong = metric.is_lower is not None and (t < 0) is not metric.is_lower
    return f"the metric gets worse with {name}" if is_wrong else ""


def _held_out(fit: ScalingFit, point: SizePoint, used: Sequence[int]) -> HeldOut:
    """The prediction of a held-out size at the seeds of the fit that have a result there."""
    if fit.scores is None or fit.theta is None or point.size <= 0:
        return HeldOut(point, LawEstimate(math.nan, math.nan, math.nan), math.nan)
    there = [row for row, i in enumerate(used) if usable_seeds([point], [i])]
    if len(there) < FEWEST_SEEDS:
        return HeldOut(point, fit.value_at(point.size), math.nan)
    observed = np.array([point.arm.scores[used[row]] for row in there], float)
    scores, beyond = fit.scores[there], scaling_law.law_at(np.log([point.size / fit.unit]))
    theta = scaling_law.fit(fit.places, scores.mean(0))
    predicted = scaling_tests.prediction_interval(theta, fit.law, beyond, scores, observed)
    return HeldOut(point, LawEstimate(*predicted), float(observed.mean()))


def _with_parameters(fit: ScalingFit, metric: MetricRange) -> ScalingFit:
    """The fit with its parameters, or with the reason why they are not identified."""
    theta, scores, law = fit.theta, fit.scores, fit.law
    if theta is None or scores is None:
        return fit
    steepest = (-scaling_law.STEEPEST, scaling_law.STEEPEST)
    low, high = scaling_tests.interval_of(scaling_law.exponent_of, law, scores, theta, steepest)
    if not (low > 0 and math.isfinite(high)):
        return dataclasses.replace(fit, reason=unbounded_exponent(low, high))
    limit = scaling_law.limit_of(theta)[0]
    if reason := at_its_bound(limit, metric):
        return dataclasses.replace(fit, reason=reason)
    ends = scaling_tests.interval_of(scaling_law.limit_of, law, scores, theta)
    log_amplitude = functools.partial(scaling_law.log_amplitude_of, log_unit=math.log(fit.unit))
    logs = LawEstimate(log_amplitude(theta)[0], *scaling_tests.interval_of(log_amplitude, law, scores, theta))
    return dataclasses.replace(
        fit,
        exponent=LawEstimate(float(theta[2]), low, high),
        limit=LawEstimate(limit, max(ends[0], metric.low), min(ends[1], metric.high)),
        amplitude=amplitude_of(logs, theta[1]),
    )


def at_its_bound(limit: float, metric: MetricRange) -> str:
    """Return the reason why a limit is not identified: it is not inside the range of the metric; else nothing."""
    if metric.low < limit < metric.high:
        return ""
    return f"the best L∞ is at its bound of {metric.low if limit <= metric.low else metric.high:g}"


def amplitude_of(logs: LawEstimate, sign: float) -> LawEstimate:
    """Return an amplitude with its interval from those of the logarithm of its size, with the sign of a number."""
    value, low, high = (
        math.copysign(math.exp(log) if log < 700 else math.inf, sign) for log in (logs.value, logs.low, logs.high)
    )
    return LawEstimate(value, min(low, high), max(low, high))


def unbounded_exponent(low: float, high: float, symbol: str = "α", size: str = "C") -> str:
    """Return the reason why an exponent is not identified: its interval reaches 0, or has no upper end."""
    if low > 0:
        return f"the seeds give {symbol} no upper bound ({symbol} is above {low:.2g})"
    what = f"a straight line in log {size} without any L∞ fits as well"
    end = f" ({symbol} is below {high:.2g})" if math.isfinite(high) else ""
    return f"the interval of {symbol} includes 0: {what}{end}"
