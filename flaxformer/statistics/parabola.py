"""Minimum of a fitted parabola with its interval over seeds, for the optimum of a sweep."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

Matrix: TypeAlias = np.ndarray | Sequence[Sequence[float]]
"""Values with the seeds as rows."""
COEFFICIENTS = 3
"""Coefficients of a parabola."""
NEIGHBOURS = 2
"""Number of values on each side of the best to which the parabola of a sweep is fitted."""


@dataclasses.dataclass(frozen=True)
class Vertex:
    """Minimum of a fitted parabola with its interval; an end is infinite where the data do not bound it.

    Both ends are NaN for one seed.
    """

    x: float
    low: float
    high: float


def vertex(x: Sequence[float], y: Matrix, level: float = 0.05) -> Vertex | None:
    """Fit y = a + b·x + c·x² to each seed, and return the minimum −b / 2c of their mean, with its interval.

    The fit is by least squares. The interval is Fieller's (1954), over the seeds: every v at which the slopes b + 2·c·v
    of the seeds do not differ from 0 in the mean by Student's t-test with n − 1 degrees of freedom. It is exact if the
    b and c of seeds are jointly normal, whatever varies between seeds: the place of the minimum, the curvature, or the
    noise. A seed whose own parabola has no minimum counts as any other.

    Args:
      x: positions [values].
      y: values [seeds, values].
      level: 1 − the coverage of the interval.

    Returns:
      None if the mean has no minimum (c ≤ 0), or with fewer than three different positions. The ends are NaN for one
      seed.
    """
    positions, values = np.asarray(x, float), np.atleast_2d(np.asarray(y, float))
    if len(np.unique(positions)) < COEFFICIENTS:
        return None
    centre, size = positions.mean(), positions.std()
    z, n = (positions - centre) / size, len(values)
    _, slopes, curvatures = np.linalg.lstsq(np.vander(z, COEFFICIENTS, increasing=True), values.T, rcond=None)[0]
    b, c = slopes.mean(), curvatures.mean()
    if c <= 0:
        return None
    v = -b / (2 * c)
    if n < 2:
        return Vertex(float(centre + size * v), math.nan, math.nan)
    t = special.stdtrit(n - 1, 1 - level / 2)
    (var_b, cov), (_, var_c) = np.cov(slopes, curvatures) / n * t**2
    # (b + 2cv)² ≤ t²·var(b + 2cv) is p·v² + q·v + r ≤ 0
    p, q = 4 * (c**2 - var_c), 4 * (b * c - cov)
    # q² − 4·p·r, in which the largest terms cancel exactly
    root = 4 * math.sqrt(max(0.0, c**2 * var_b - 2 * b * c * cov + b**2 * var_c + cov**2 - var_b * var_c))
    ends = sorted(((-q - root) / (2 * p), (-q + root) / (2 * p))) if p and root else (v, v)
    if p <= 0:  # the curvature is not significant: at most one end is bounded
        unbounded = root == 0 or p == 0
        ends = (-math.inf, math.inf) if unbounded else (-math.inf, ends[0]) if v <= ends[0] else (ends[1], math.inf)
    return Vertex(*(float(centre + size * end) for end in (v, *ends)))


def near_best(losses: Mapping[float, float]) -> list[float]:
    """Return the value with the lowest loss and up to `NEIGHBOURS` values on each side, in increasing order.

    A value whose loss is not finite is left out; with no other, the result is empty.
    """
    values = sorted(value for value, loss in losses.items() if math.isfinite(loss))
    if not values:
        return []
    best = values.index(min(values, key=lambda value: losses[value]))
    return values[max(0, best - NEIGHBOURS) : best + NEIGHBOURS + 1]


def log_optimum(losses: Mapping[float, float]) -> float:
    """Return ln of the value with the lowest loss, interpolated by a parabola in ln(value).

    The parabola is fitted to the best value that was tried and up to `NEIGHBOURS` values on each side. It serves a
    study that derives the best learning rates of models of several sizes from the runs of one seed.

    Args:
      losses: the loss by value, such as the learning rate; all values are positive.

    Returns:
      The minimum of the parabola, or the nearest end of the fitted values if it is outside them. If the parabola has no
      minimum, or fewer than 4 points since the best value is the first or the last, the best value that was tried.
      Values whose loss is not finite are left out; NaN without any other.
    """
    near = near_best(losses)
    if not near:
        return math.nan
    positions = [math.log(value) for value in near]
    fitted = vertex(positions, [[losses[value] for value in near]]) if len(near) > COEFFICIENTS else None
    if fitted is None:
        return math.log(min(near, key=lambda value: losses[value]))
    return min(max(fitted.x, positions[0]), positions[-1])
