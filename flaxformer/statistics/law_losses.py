"""Losses by which a joint scaling law is fitted: Huber's of log residuals, and least squares of log or raw residuals.

With the prediction μ and the observed loss m, the residual is r = log μ − log m, or μ − m. Huber's loss (1964) is
r² / 2 for |r| ≤ δ, and δ·(|r| − δ / 2) beyond, so that single points that miss the law pull as little as those near it.

Source: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models" (arXiv 2203.15556), appendix D.2, with
δ = 1e-3; Besiroglu et al. 2024, "Chinchilla Scaling: A replication attempt" (arXiv 2404.10102).
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np

LawLoss = Literal["huber", "log_squares", "squares"]
LOSSES: tuple[LawLoss, ...] = get_args(LawLoss)
DESCRIPTIONS: dict[str, str] = {
    "huber": "Huber's loss of log residuals",
    "log_squares": "squared log residuals",
    "squares": "squared residuals",
}
DELTA = 1e-3
"""δ of Hoffmann et al., in log losses: residuals above 0.1 % count linearly."""
Values: TypeAlias = np.ndarray
Laws = Callable[[Values], tuple[Values, Values]]
SMALLEST = 1e-150
"""Norm of a column of a Jacobian below which its square has no digits; a step leaves such a parameter as it is."""
STEADY = 3
"""Number of steps in a row without a decrease after which a fit ends."""


def is_logarithmic(loss: LawLoss) -> bool:
    """True if residuals are those of the logarithm."""
    return loss != "squares"


def residual_loss(residuals: Values, loss: LawLoss, delta: float = DELTA) -> Values:
    """Return the loss of each residual."""
    if loss != "huber":
        return residuals**2 / 2
    sizes = np.abs(residuals)
    return np.where(sizes <= delta, residuals**2 / 2, delta * (sizes - delta / 2))


def residual_weight(residuals: Values, loss: LawLoss, delta: float = DELTA) -> Values:
    """Return the weight with which each residual takes part in least squares: the slope of its loss divided by it."""
    return np.ones_like(residuals) if loss != "huber" else delta / np.maximum(np.abs(residuals), delta)


def minimise_many(
    law: Laws,
    targets: Values,
    start: Values,
    loss: LawLoss,
    delta: float = DELTA,
    counts: Values | None = None,
    most: int = 300,
    tolerance: float = 1e-10,
) -> tuple[Values, Values]:
    """Return local minima of Σᵢ countᵢ · loss(μᵢ(θ) − targetᵢ) from several starts, and their values.

    Every step is one of Levenberg and Marquardt on squares that are reweighted by the residuals, which never raises
    the sum (Holland and Welsch 1977); all minimisations take it together.

    Args:
      law: from parameters [fits, p] to predictions [fits, points], in logarithms if the residuals are, and their
        Jacobian [fits, points, p]; NaN where there is none.
      targets: observations [points], or [fits, points].
      start: parameters [fits, p].
      loss, delta: the loss.
      counts: number of times that each point counts, [points] or [fits, points]; by default once.
      most: largest number of steps.
      tolerance: relative decrease of the sum at which a fit ends, after three such steps.
    """
    theta, times = np.array(start, float), np.ones(1) if counts is None else counts
    shape = (len(theta), np.shape(targets)[-1])
    targets, times = np.broadcast_to(targets, shape), np.broadcast_to(times, shape)

    def evaluate(parameters: Values, fits: Values) -> tuple[Values, Values, Values]:
        """Sums, residuals and Jacobians; a sum is infinite where there is no prediction."""
        with np.errstate(all="ignore"):
            mu, jacobian = law(parameters)
            residuals = mu - targets[fits]
            sums = (times[fits] * residual_loss(residuals, loss, delta)).sum(-1)
        is_known = np.isfinite(sums) & np.isfinite(jacobian).all((1, 2))
        return np.where(is_known, sums, np.inf), residuals, jacobian

    active = np.arange(len(theta))
    total, residuals, jacobian = evaluate(theta, active)
    damping, slow = np.full(len(theta), 1e-4), np.zeros(len(theta), int)
    active = active[np.isfinite(total)]
    for _ in range(most):
        if not len(active):
            break
        r, j = residuals[active], jacobian[active]
        weighted = j * (times[active] * residual_weight(r, loss, delta))[..., None]
        normal, gradient = np.swapaxes(weighted, 1, 2) @ j, (weighted * r[..., None]).sum(1)
        size = np.sqrt(np.einsum("rii->ri", normal))
        unit = np.where(size > SMALLEST, 1 / np.maximum(size, SMALLEST), 0.0)
        scaled = normal * unit[:, :, None] * unit[:, None] + damping[active, None, None] * np.eye(theta.shape[1])
        step = np.linalg.solve(scaled, (gradient * unit)[..., None])[..., 0] * unit
        tried = theta[active] - step
        sums, r, j = evaluate(tried, active)
        better = sums <= total[active]
        decrease = np.where(better, total[active] - sums, 0.0)
        slow[active] = np.where(decrease <= tolerance * total[active], slow[active] + 1, 0)
        damping[active] = np.where(better, np.maximum(damping[active] / 10, 1e-12), damping[active] * 10)
        won = active[better]
        theta[won], total[won], residuals[won], jacobian[won] = tried[better], sums[better], r[better], j[better]
        ended = (better & (slow[active] >= STEADY)) | (damping[active] > 1e9)
        active = active[~ended]
    return theta, total
