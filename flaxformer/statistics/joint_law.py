"""Joint scaling law L = L∞ + A·N^(−α) + B·D^(−β) in the parameters N and the training tokens D.

It is the third approach of Hoffmann et al. (2022, arXiv 2203.15556), fitted to means over seeds by one of
`statistics.law_losses`: Huber's loss of log residuals, as there, or least squares. With x = log(N / N₀),
y = log(D / D₀) and h of `scaling_law.basis`, it is fitted as L = p − q·h(x, α) − r·h(y, β). Then
A = (q / α)·N₀^α, B = (r / β)·D₀^β and L∞ = p − q / α − r / β, for α, β > 0.

At a compute C ∝ N·D, the loss is least where N ∝ C^a and D ∝ C^(1 − a) with a = β / (α + β).
"""

import itertools
import math

import numpy as np

from flaxformer.statistics.law_losses import DELTA, LawLoss, Laws, is_logarithmic, minimise_many
from flaxformer.statistics.scaling_law import STEEPEST, LawAtSizes, Matrix, Vector, basis, minimise

PARAMETERS = 5
"""Parameters of the law: p, q, α, r and β."""
STARTS = np.linspace(-0.5, 2.5, 13)
MOST_STARTS = 16
"""Number of pairs of exponents, the best by least squares, from which another loss is minimised."""


def law_at(x: Vector, y: Vector) -> LawAtSizes:
    """Return the law at the places of some sizes.

    Args:
      x: log(N / N₀) of each size.
      y: log(D / D₀) of each size.
    """

    def law(theta: Vector) -> tuple[Vector, Matrix]:
        p, q, alpha, r, beta = theta
        (h, h_slope), (g, g_slope) = basis(x, alpha), basis(y, beta)
        return p - q * h - r * g, np.column_stack([np.ones_like(x), -h, -q * h_slope, -g, -r * g_slope])

    return law


def laws_at(x: Vector, y: Vector, is_logarithm: bool) -> Laws:
    """Return the laws of several θ [fits, 5] at the places of some sizes, or their logarithms, for `minimise_many`."""

    def laws(theta: Matrix) -> tuple[Matrix, Matrix]:
        p, q, alpha, r, beta = theta.T[..., None]
        (h, h_slope), (g, g_slope) = basis(x[None], alpha), basis(y[None], beta)
        values = p - q * h - r * g
        jacobian = np.stack([np.ones_like(values), -h, -q * h_slope, -g, -r * g_slope], -1)
        values = np.where((np.abs(alpha) < STEEPEST) & (np.abs(beta) < STEEPEST), values, math.nan)
        return (np.log(values), jacobian / values[..., None]) if is_logarithm else (values, jacobian)

    return laws


def fit(x: Vector, y: Vector, losses: Vector, loss: LawLoss = "huber", delta: float = DELTA) -> Vector:
    """Return p, q, α, r and β of the law with the least loss, from the best of several pairs of exponents.

    Args:
      x: log(N / N₀) of each size.
      y: log(D / D₀) of each size.
      losses: mean at each size; above 0 for a loss of log residuals.
      loss: what is minimised.
      delta: δ of Huber's loss.
    """
    candidates = []
    for alpha, beta in itertools.product(STARTS, STARTS):
        design = np.column_stack([np.ones_like(x), -basis(x, alpha)[0], -basis(y, beta)[0]])
        p, q, r = np.linalg.lstsq(design, losses, rcond=None)[0]
        candidates.append((float(((losses - design @ (p, q, r)) ** 2).sum()), p, q, alpha, r, beta))
    law = law_at(x, y)

    def residuals(theta: Vector) -> tuple[Vector, Matrix]:
        values, jacobian = law(theta)
        return values - losses, jacobian

    best = minimise(residuals, np.array(min(candidates)[1:]), most=200)
    if loss == "squares":
        return best
    starts = np.array([best, *(candidate[1:] for candidate in sorted(candidates)[:MOST_STARTS])])
    thetas, sums = refit(x, y, losses, starts, loss, delta)
    return thetas[np.argmin(sums)]


def refit(
    x: Vector, y: Vector, losses: Vector | Matrix, starts: Matrix, loss: LawLoss, delta: float = DELTA
) -> tuple[Matrix, Vector]:
    """Return the minima from several starts [fits, 5], and the sums there; `losses` is [sizes] or [fits, sizes]."""
    is_logarithm = is_logarithmic(loss)
    targets = np.log(losses) if is_logarithm else losses
    return minimise_many(laws_at(x, y, is_logarithm), targets, starts, loss, delta)


def alpha_of(theta: Vector) -> tuple[float, Vector]:
    """Return α."""
    return float(theta[2]), np.eye(PARAMETERS)[2]


def beta_of(theta: Vector) -> tuple[float, Vector]:
    """Return β."""
    return float(theta[4]), np.eye(PARAMETERS)[4]


def limit_of(theta: Vector) -> tuple[float, Vector]:
    """Return L∞ = p − q / α − r / β; infinite unless both exponents are positive."""
    p, q, alpha, r, beta = theta
    if alpha <= 0 or beta <= 0:
        return -math.inf, np.zeros(PARAMETERS)
    return float(p - q / alpha - r / beta), np.array([1.0, -1 / alpha, q / alpha**2, -1 / beta, r / beta**2])


def log_amplitude_of(theta: Vector, log_unit: float, is_of_tokens: bool = False) -> tuple[float, Vector]:
    """Return log |A| = log |q / α| + α log N₀, or log |B| = log |r / β| + β log D₀.

    Infinite for an exponent that is not positive.

    Args:
      theta: parameters of the law.
      log_unit: log N₀, or log D₀.
      is_of_tokens: True for B.
    """
    place = 3 if is_of_tokens else 1
    slope, exponent = theta[place], theta[place + 1]
    gradient = np.zeros(PARAMETERS)
    if exponent <= 0 or slope == 0:
        return math.inf, gradient
    gradient[place : place + 2] = 1 / slope, log_unit - 1 / exponent
    return math.log(abs(slope) / exponent) + exponent * log_unit, gradient


def allocation_of(theta: Vector) -> tuple[float, Vector]:
    """Return a = β / (α + β), the exponent of the best N in C; NaN unless both exponents are positive."""
    _, _, alpha, _, beta = theta
    if alpha <= 0 or beta <= 0:
        return math.nan, np.zeros(PARAMETERS)
    total = alpha + beta
    return float(beta / total), np.array([0.0, 0.0, -beta / total**2, 0.0, alpha / total**2])


def value_at(theta: Vector, x: float, y: float) -> tuple[float, Vector]:
    """Return the law at one size."""
    values, jacobian = law_at(np.array([x]), np.array([y]))(theta)
    return float(values[0]), jacobian[0]
