"""Fit of the joint law in parameters and tokens to one arm: what is identified, and what is not, with the reason."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from flaxformer.study import joint_law, scaling_tests
from flaxformer.study.claim import Labels
from flaxformer.study.scaling_fit import (
    HeldOut,
    LawEstimate,
    MetricRange,
    SizePoint,
    amplitude_of,
    at_its_bound,
    no_trend,
    unbounded_exponent,
    usable_seeds,
)
from flaxformer.study.scaling_law import STEEPEST, Functional, LawAtSizes, Matrix, Vector
from flaxformer.study.statistics import FEWEST_SEEDS
from flaxformer.wording import counted

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
    def fitted(self) -> list[JointPoint]:
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


def fit_jointly(labels: Labels, points: Sequence[JointPoint], declared: Sequence[int], metric: MetricRange) -> JointFit:
    """Fit the joint law to one arm.

    Args:
      labels: labels of the arm on the axes other than that over sizes.
      points: its sizes, with at least `FEWEST_SIZES` different pairs of parameters and tokens.
      declared: seeds of the study.
      metric: range of the metric.
    """
    found = JointFit(labels, points)
    own = found.fitted
    if reason := _too_few(own):
        return dataclasses.replace(found, reason=reason)
    used = usable_seeds(own, range(len(declared)))
    if len(used) < FEWEST_SEEDS:
        missing = (
            f"{len(used)} of {counted(len(declared), 'seed')} finished without divergence, and with a finite score, at "
            f"every fitted size; at least {FEWEST_SEEDS} are needed"
        )
        return dataclasses.replace(found, reason=missing)
    scores = np.array([[point.arm.scores[i] for point in own] for i in used], float)
    units = (_middle([point.size for point in own]), _middle([point.tokens for point in own]))
    found = dataclasses.replace(found, seeds=tuple(declared[i] for i in used), units=units, scores=scores)
    if float(scores.std(0).max()) <= 1e-9 * float(np.abs(scores).max()):
        return dataclasses.replace(found, reason="all seeds have the same scores, so that no interval exists")
    x, y = _places(found, own)
    slopes = np.linalg.lstsq(np.column_stack([np.ones_like(x), x, y]), scores.T, rcond=None)[0][1:]
    for name, per_seed in zip(NAMES, slopes, strict=True):
        if reason := no_trend(per_seed, metric, name):
            return dataclasses.replace(found, reason=reason)
    theta = joint_law.fit(x, y, scores.mean(0))
    found = dataclasses.replace(found, theta=theta, misfit_p=scaling_tests.misfit_p(theta, found.law_of(own), scores))
    held_out = tuple(_held_out(found, point, used, theta, scores) for point in points if point.is_held_out)
    return _with_numbers(dataclasses.replace(found, held_out=held_out), theta, scores, metric)


def _too_few(points: Sequence[JointPoint]) -> str:
    """The reason why sizes do not determine a law, whatever their runs give; else nothing."""
    pairs = {(point.size, point.tokens) for point in points}
    for place, name in enumerate(NAMES):
        values = {pair[place] for pair in pairs}
        if len(values) < FEWEST_LEVELS:
            n = counted(len(values), "different number")
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


def _places(found: JointFit, points: Sequence[JointPoint]) -> tuple[Vector, Vector]:
    """log(N / N₀) and log(D / D₀) of some sizes."""
    sizes = np.array([(point.size, point.tokens) for point in points])
    x, y = np.log(sizes / found.units).T
    return x, y


def _held_out(found: JointFit, point: JointPoint, used: Sequence[int], theta: Vector, scores: Matrix) -> HeldOut:
    """The prediction of a held-out size at the seeds of the fit that have a result there."""
    law, beyond = found.law_of(found.fitted), found.law_of([point])
    there = [row for row, i in enumerate(used) if usable_seeds([point], [i])]
    if len(there) < FEWEST_SEEDS:
        ([x], [y]) = _places(found, [point])
        value = functools.partial(joint_law.value_at, x=x, y=y)
        ends = scaling_tests.interval_of(value, law, scores, theta)
        return HeldOut(point, LawEstimate(value(theta)[0], *ends), math.nan)
    own = np.array([point.arm.scores[used[row]] for row in there], float)
    theta = joint_law.fit(*_places(found, found.fitted), scores[there].mean(0))
    predicted = scaling_tests.prediction_interval(theta, law, beyond, scores[there], own)
    return HeldOut(point, LawEstimate(*predicted), float(own.mean()))


def _with_numbers(found: JointFit, theta: Vector, scores: Matrix, metric: MetricRange) -> JointFit:
    """The fit with its numbers, or with the reason why they are not identified."""
    law = found.law_of(found.fitted)

    def estimate(functional: Functional, most: float = math.inf) -> LawEstimate:
        ends = scaling_tests.interval_of(functional, law, scores, theta, (-most, most))
        return LawEstimate(functional(theta)[0], *ends)

    exponents = {"α": estimate(joint_law.alpha_of, STEEPEST), "β": estimate(joint_law.beta_of, STEEPEST)}
    for (symbol, one), size in zip(exponents.items(), "ND", strict=True):
        if not (one.low > 0 and math.isfinite(one.high)):
            return dataclasses.replace(found, reason=unbounded_exponent(one.low, one.high, symbol, size))
    limit = estimate(joint_law.limit_of)
    if reason := at_its_bound(limit.value, metric):
        return dataclasses.replace(found, reason=reason)
    amplitudes = [
        functools.partial(joint_law.log_amplitude_of, log_unit=math.log(unit), is_of_tokens=is_of_tokens)
        for is_of_tokens, unit in zip((False, True), found.units, strict=True)
    ]
    numbers = {
        "α": exponents["α"],
        "A": amplitude_of(estimate(amplitudes[0]), theta[1]),
        "β": exponents["β"],
        "B": amplitude_of(estimate(amplitudes[1]), theta[3]),
        "L∞": LawEstimate(limit.value, max(limit.low, metric.low), min(limit.high, metric.high)),
        "a": estimate(joint_law.allocation_of),
    }
    return dataclasses.replace(found, numbers=numbers)
