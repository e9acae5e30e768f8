"""Minimum of a fitted parabola with its interval, for the optimum of a sweep."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

NEIGHBOURS = 2
"""Number of values on each side of the best to which the parabola of a sweep is fitted."""


@dataclasses.dataclass(frozen=True)
class Vertex:
    """Minimum of a fitted parabola with its interval; an end is infinite where the data do not bound it."""

    x: float
    low: float
    high: float


def vertex(x: Sequence[float], y: Sequence[float], block: Sequence[int], level: float = 0.05) -> Vertex | None:
    """Fit y = a[block] + b·x + c·x² by least squares, and return the minimum −b / 2c with a (1 − level) interval.

    The interval is Fieller's (1954): every v at which the slope b + 2·c·v does not differ significantly from 0 by the
    t-test with n − blocks − 2 degrees of freedom. It is exact for independent normal errors of equal variance.

    Args:
      x: position of each observation.
      y: its value.
      block: its block, such as the seed: observations of one block share an offset.
      level: 1 − the coverage of the interval.

    Returns:
      None if the fit has no minimum (c ≤ 0), or if no degree of freedom is left.
    """
    positions, blocks = np.asarray(x, float), np.unique(block, return_inverse=True)[1]
    centre, size = positions.mean(), positions.std() or 1.0
    z = (positions - centre) / size
    # The offsets are eliminated: without the means of their blocks, the other columns have the same coefficients.
    design, values = (_without_means(own, blocks) for own in (np.column_stack([z, z**2]), np.asarray(y, float)))
    freedom = len(z) - (blocks.max() + 1) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    inverse = np.linalg.inv(design.T @ design)
    b, c = coefficients = inverse @ design.T @ values
    residual = values - design @ coefficients
    if c <= 0:
        return None
    t = special.stdtrit(freedom, 1 - level / 2)
    (var_b, cov), (_, var_c) = inverse * (residual @ residual / freedom) * t**2
    found = -b / (2 * c)
    # (b + 2cv)² ≤ t²·var(b + 2cv) is p·v² + q·v + r ≤ 0
    p, q = 4 * (c**2 - var_c), 4 * (b * c - cov)
    # q² − 4·p·r, in which the largest terms cancel exactly
    root = 4 * math.sqrt(max(0.0, c**2 * var_b - 2 * b * c * cov + b**2 * var_c + cov**2 - var_b * var_c))
    ends = sorted(((-q - root) / (2 * p), (-q + root) / (2 * p))) if p and root else (found, found)
    if p <= 0:  # the curvature is not significant: at most one end is bounded
        unbounded = root == 0 or p == 0
        ends = (-math.inf, math.inf) if unbounded else (-math.inf, ends[0]) if found <= ends[0] else (ends[1], math.inf)
    return Vertex(*(float(centre + size * end) for end in (found, *ends)))


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
    found = vertex(positions, [losses[value] for value in near], [0] * len(near))
    if found is None:
        return math.log(min(near, key=lambda value: losses[value]))
    return min(max(found.x, positions[0]), positions[-1])


def _without_means(columns: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Observations without the mean of their block."""
    sums, sizes = np.zeros((blocks.max() + 1, *columns.shape[1:])), np.bincount(blocks)
    np.add.at(sums, blocks, columns)
    return columns - (sums / sizes.reshape(-1, *[1] * (columns.ndim - 1)))[blocks]
