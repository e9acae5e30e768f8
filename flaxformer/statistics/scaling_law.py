"""Scaling law L = L∞ + A·C^(−α): curves, their least-squares fit, and numbers that follow from it.

A curve is fitted as L = p − q·h(x, α), with x = log(C / C₀) and h(x, α) = (1 − exp(−αx)) / α, which is smooth at α = 0,
where it is a straight line in log C. Then L∞ = p − q / α and A = (q / α)·C₀^α, for α > 0.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

Vector: TypeAlias = np.ndarray
Matrix: TypeAlias = np.ndarray
LawAtSizes = Callable[[Vector], tuple[Vector, Matrix]]
"""From parameters to the values at some sizes and their Jacobian."""
Residuals = Callable[[Vector], tuple[Vector, Matrix]]
"""From parameters to residuals and their Jacobian."""
Functional = Callable[[Vector], tuple[float, Vector]]
"""From parameters to a number and its gradient."""
Scalar = Callable[[float], float]
Hypothesis = tuple[Functional, float]
"""A number ψ, and the value that it has."""
PARAMETERS = 3
"""Parameters of a curve: p, q and α."""
STEEPEST = 6.0
"""Largest size of an exponent that is tried."""
STARTS = np.linspace(-1.0, 3.0, 41)


def basis(x: Vector, exponent: float) -> tuple[Vector, Vector]:
    """Return h(x, α) = (1 − exp(−αx)) / α and its derivative by α, also at α = 0, where h = x."""
    z = exponent * x
    near = np.abs(z) < 1e-2
    safe = np.where(near, 1.0, z)
    with np.errstate(over="ignore", invalid="ignore"):
        far, far_slope = -np.expm1(-safe) / safe, (np.exp(-safe) * (safe + 1) - 1) / safe**2
    value = np.where(near, 1 - z / 2 + z**2 / 6 - z**3 / 24 + z**4 / 120, far)
    slope = np.where(near, -1 / 2 + z / 3 - z**2 / 8 + z**3 / 30 - z**4 / 144, far_slope)
    return x * value, x**2 * slope


def curves(theta: Vector, x: Sequence[Vector]) -> tuple[Vector, Matrix]:
    """Return the values of curves, one after another, and their Jacobian; `theta` has p, q and α of each."""
    jacobian = np.zeros((sum(map(len, x)), PARAMETERS * len(x)))
    values, row = [], 0
    for i, places in enumerate(x):
        p, q, exponent = theta[PARAMETERS * i : PARAMETERS * (i + 1)]
        h, slope = basis(places, exponent)
        values.append(p - q * h)
        rows = slice(row, row := row + len(places))
        jacobian[rows, PARAMETERS * i : PARAMETERS * (i + 1)] = np.column_stack([np.ones_like(h), -h, -q * slope])
    return np.concatenate(values), jacobian


def law_at(*x: Vector) -> LawAtSizes:
    """Return the law of one or more arms at the places of their sizes."""
    return functools.partial(curves, x=x)


@np.errstate(over="ignore", invalid="ignore")  # steps that overflow are rejected
def minimise(residuals: Residuals, start: Vector, hypothesis: Hypothesis | None = None, most: int = 60) -> Vector:
    """Return a local minimum of the sum of squares, by the method of Levenberg and Marquardt.

    Every step keeps the hypothesis. The result is NaN where the Jacobian overflows.

    Args:
      residuals: residuals and their Jacobian.
      start: parameters to start from.
      hypothesis: ψ and the value that it has in the result.
      most: largest number of steps.
    """
    theta, damping, is_feasible = start, 1e-6, hypothesis is None
    r, jacobian = residuals(theta)
    for _ in range(most):
        size = np.sqrt((jacobian**2).sum(0)) + 1e-300
        if not np.isfinite(size).all():
            return np.full_like(theta, math.nan)
        scaled = jacobian / size
        inverse = np.linalg.inv(scaled.T @ scaled + damping * np.eye(len(theta))) / np.outer(size, size)
        tried = theta - inverse @ (jacobian.T @ r)
        if hypothesis is not None:
            tried = _restore(tried, theta, hypothesis, inverse)
        tried_r, tried_jacobian = residuals(tried)
        before, after = float(r @ r), float(tried_r @ tried_r)
        if is_feasible and not after <= before:
            damping *= 10
            if damping > 1e9:
                break
            continue
        change = float(np.abs((tried - theta) * size).max())
        theta, r, jacobian = tried, tried_r, tried_jacobian
        if is_feasible and change <= 1e-6 * math.sqrt(before):
            break
        is_feasible, damping = True, max(damping / 10, 1e-12)
    return theta


def _restore(tried: Vector, theta: Vector, hypothesis: Hypothesis, inverse: Matrix) -> Vector:
    """Move parameters to where the hypothesis holds, with the least change of the curve; `theta` is where they were."""
    functional, value = hypothesis
    _, gradient = functional(theta)
    direction = inverse @ gradient
    for _ in range(6):
        psi, gradient = functional(tried)
        slope = float(gradient @ direction)
        if not math.isfinite(psi) or slope == 0:
            return np.full_like(tried, math.nan)
        step = direction * ((value - psi) / slope)
        tried = tried + step
        if abs(value - psi) <= 1e-12 * (abs(value) + abs(psi)):
            break
    return tried


def fit(x: Vector, y: Vector) -> Vector:
    """Return p, q and α of the curve with the least squares, from the best of several exponents."""
    candidates = []
    for exponent in STARTS:
        design = np.column_stack([np.ones_like(x), -basis(x, exponent)[0]])
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        candidates.append((float(((y - design @ coefficients) ** 2).sum()), *coefficients, exponent))

    def residuals(theta: Vector) -> tuple[Vector, Matrix]:
        mu, jacobian = curves(theta, [x])
        return mu - y, jacobian

    return minimise(residuals, np.array(min(candidates)[1:]))


def exponent_of(theta: Vector) -> tuple[float, Vector]:
    """Return α."""
    return float(theta[2]), np.array([0.0, 0.0, 1.0])


def limit_of(theta: Vector) -> tuple[float, Vector]:
    """Return L∞ = p − q / α; infinite for α ≤ 0."""
    p, q, exponent = theta
    if exponent <= 0:
        return -math.inf, np.zeros(PARAMETERS)
    return float(p - q / exponent), np.array([1.0, -1 / exponent, q / exponent**2])


def log_amplitude_of(theta: Vector, log_unit: float) -> tuple[float, Vector]:
    """Return log |A| = log |q / α| + α log C₀; infinite for α ≤ 0.

    Args:
      theta: p, q and α of one curve.
      log_unit: log C₀.
    """
    _, q, exponent = theta
    if exponent <= 0 or q == 0:
        return math.inf, np.zeros(PARAMETERS)
    return math.log(abs(q) / exponent) + exponent * log_unit, np.array([0.0, 1 / q, log_unit - 1 / exponent])


def value_at(theta: Vector, x: float) -> tuple[float, Vector]:
    """Return the value of one curve at x = log(C / C₀)."""
    values, jacobian = curves(theta, [np.array([x])])
    return float(values[0]), jacobian[0]


def difference_at(theta: Vector, x: float) -> tuple[float, Vector]:
    """Return the value of the first of two curves minus that of the second at x = log(C / C₀)."""
    first, gradient = value_at(theta[:PARAMETERS], x)
    second, other = value_at(theta[PARAMETERS:], x)
    return first - second, np.concatenate([gradient, -other])
