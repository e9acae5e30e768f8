"""Fit of the joint scaling law L = L∞ + A·N^(−α) + B·D^(−β) to points (N, D, L), from any source.

As Hoffmann et al. (2022, appendix D.2) and Besiroglu et al. (2024): with a = log A, b = log B and e = log L∞,

> minimise Σᵢ Huber_δ(logsumexp(a − α log Nᵢ, b − β log Dᵢ, e) − log Lᵢ)

by L-BFGS from a grid of starts. Their grid of 4,500 starts is evaluated, and the best are minimised. The points are the
sample: intervals are percentiles of fits to points that are drawn with replacement (Efron 1979), of log A, log B and
log L∞ in place of these, and widened for few points (`seed_bootstrap.widened_interval`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import optimize

from flaxformer.statistics.finite import LARGEST
from flaxformer.statistics.law_losses import (
    DELTA,
    LOSSES,
    LawLoss,
    is_logarithmic,
    minimise_many,
    residual_loss,
    residual_weight,
)
from flaxformer.statistics.scaling_law import Matrix, Vector
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.statistics.seed_bootstrap import widened_interval
from flaxformer.system.errors import UserError, did_you_mean

FEWEST_POINTS = 6
"""Number of points below which nothing is fitted: one more than the law has parameters."""
FEWEST_LEVELS = 3
"""Number of different N, D and losses below which nothing is fitted."""
GRID = (
    np.arange(0.0, 30.0, 5.0),
    np.arange(0.0, 30.0, 5.0),
    np.arange(-1.0, 1.5, 0.5),
    np.arange(0.0, 2.5, 0.5),
    np.arange(0.0, 2.5, 0.5),
)
"""Starts of a, b, e, α and β (Hoffmann et al. 2022)."""
MOST_STARTS = 24
"""Number of the best starts of the grid that are minimised."""
RESAMPLES = 1000
LEVEL = 0.05
PARAMETERS = 5
"""Parameters of the law: a, b, e, α and β."""
LOGARITHMIC = ("A", "B", "L∞")
"""Numbers whose logarithm is a parameter, and has the interval."""
SMALLER = 2.0
"""Factor by which δ falls from that of Hoffmann et al. to a smaller one, each fit starting from the last."""
MOST_RESTARTS = 5
MOST_TOGETHER = 2**16
"""Number of points of several resamples that are fitted together, for the sake of memory."""


@dataclasses.dataclass(frozen=True)
class PointsFit:
    """Joint law of some points."""

    numbers: Mapping[str, LawEstimate]
    """α, A, β, B, L∞, and a = β / (α + β), the exponent of the best N in C ∝ N·D, each with its 95 % interval."""
    errors: Mapping[str, float]
    """Standard error of each, which is the standard deviation over the resamples."""
    loss: LawLoss
    delta: float
    objective: float
    """Sum of the losses of the residuals."""
    points: int
    resamples: int

    def loss_at(self, parameters: Vector, tokens: Vector) -> Vector:
        """Return the loss that the law gives at N and D."""
        values = {name: estimate.value for name, estimate in self.numbers.items()}
        return values["L∞"] + values["A"] * parameters ** -values["α"] + values["B"] * tokens ** -values["β"]

    def best_size(self, flops: float) -> tuple[float, float]:
        """Return N and D of least loss with 6·N·D FLOPs: N = G·(C / 6)^a, G = (αA / βB)^(1 / (α + β))."""
        values = {name: estimate.value for name, estimate in self.numbers.items()}
        gain = (values["α"] * values["A"] / (values["β"] * values["B"])) ** (1 / (values["α"] + values["β"]))
        size = gain * (flops / 6) ** values["a"]
        return size, flops / 6 / size


def fit_joint_law(
    parameters: Sequence[float] | Vector,
    tokens: Sequence[float] | Vector,
    losses: Sequence[float] | Vector,
    *,
    embeddings: Sequence[float] | Vector | None = None,
    loss: LawLoss = "huber",
    delta: float = DELTA,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PointsFit:
    """Fit L = L∞ + A·N^(−α) + B·D^(−β) to points.

    >>> fit = fit_joint_law(parameters, tokens, losses)
    >>> fit.numbers["α"].value, fit.numbers["α"].low, fit.numbers["α"].high

    Args:
      parameters: N of each point.
      tokens: D of each point, the tokens that it was trained on.
      losses: L of each point.
      embeddings: parameters of embeddings of each point, which are subtracted from N.
      loss: "huber" for Huber's loss of log residuals, "log_squares" or "squares" for squares of log or raw residuals.
      delta: δ of Huber's loss. A small one, such as 1e-7, minimises the sum of absolute log residuals.
      resamples: number of fits to resampled points; 0 for none, and no intervals.
      seed: seed of the resampling.

    Raises:
      UserError: there are too few points, or too few different N, D or losses, or a number is not finite and positive;
        or the losses of the fitted law do not fall with N or D, so that no N is best.
    """
    if loss not in LOSSES:
        raise UserError(f"loss is '{loss}'{did_you_mean(str(loss), LOSSES)}")
    if not 0 < delta < math.inf:
        raise UserError(f"delta is {delta}; expected a positive number")
    if not isinstance(resamples, int) or resamples < 0:
        raise UserError(f"resamples is {resamples}; expected a whole number of at least 0")
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed is {seed}; expected a whole number of at least 0")
    points = _check_points(parameters, tokens, losses, embeddings)
    problem, n = PointsProblem(np.log(points), loss, delta), points.shape[1]
    theta = problem.best()
    for exponent, symbol, size in zip(theta[3:], "αβ", ("parameters", "tokens"), strict=True):
        if exponent <= 0:
            raise UserError(
                f"the fitted {symbol} is {exponent:.3g}; expected points whose losses fall with the number of {size}"
            )
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples).astype(float)
    drawn = problem.numbers(problem.resample(theta, counts))
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = {
            name: _estimate(float(value), drawn[name], n, np.exp if name in LOGARITHMIC else np.positive)
            for name, [value] in problem.numbers(theta[None]).items()
        }
        drawn |= {name: np.exp(drawn[name]) for name in LOGARITHMIC}
        errors = {name: float(draws.std(ddof=1)) if resamples > 1 else math.nan for name, draws in drawn.items()}
    residuals = problem.law(theta[None])[0][0] - problem.targets
    objective = float(residual_loss(residuals, loss, delta).sum())
    return PointsFit(numbers, errors, loss, delta, objective, n, resamples)


def _estimate(value: float, draws: Vector, points: int, scale: Callable[[Vector], Vector]) -> LawEstimate:
    """Return a function of a number and of its interval from resamples, whose ends are NaN for fewer than two."""
    if len(draws) < 2:
        return LawEstimate(float(scale(np.array(value))), math.nan, math.nan)
    ends = widened_interval(value, draws, points, LEVEL, PARAMETERS)
    return LawEstimate(*map(float, scale(np.array([value, *ends]))))


def _check_points(
    parameters: Sequence[float] | Vector,
    tokens: Sequence[float] | Vector,
    losses: Sequence[float] | Vector,
    embeddings: Sequence[float] | Vector | None,
) -> Matrix:
    """Return N, D and L as rows."""
    columns = {"parameters": parameters, "tokens": tokens, "losses": losses}
    if embeddings is not None:
        columns["embeddings"] = embeddings
    arrays = {name: np.asarray(values, float).ravel() for name, values in columns.items()}
    sizes = {name: len(values) for name, values in arrays.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{size} {name}" for name, size in sizes.items())
        raise UserError(f"the points have {shown}; expected as many of each")
    if embeddings is not None:
        arrays["parameters"] = arrays["parameters"] - arrays.pop("embeddings")
    for name, values in arrays.items():
        if (wrong := np.flatnonzero(~((values >= 1 / LARGEST) & (values <= LARGEST)))).size:
            without = " without embeddings" if embeddings is not None and name == "parameters" else ""
            raise UserError(
                f"{name}{without} of point {wrong[0]} is {values[wrong[0]]:g}; expected a finite number "
                f"from {1 / LARGEST:g} to {LARGEST:g}"
            )
    if len(arrays["losses"]) < FEWEST_POINTS:
        raise UserError(f"there are {len(arrays['losses'])} points; expected at least {FEWEST_POINTS}")
    for name in ("parameters", "tokens", "losses"):
        if (levels := len(np.unique(arrays[name]))) < FEWEST_LEVELS:
            what = name if name == "losses" else f"numbers of {name}"
            raise UserError(f"the points have {levels} different {what}; expected at least {FEWEST_LEVELS}")
    return np.stack([arrays[name] for name in ("parameters", "tokens", "losses")])


class PointsProblem:
    """The minimisation over θ = (a, b, e, α, β), with log N and log D less their means, which conditions it well."""

    def __init__(self, logs: Matrix, loss: LawLoss, delta: float) -> None:
        x, y, self.log_loss = logs
        self.middle = float(x.mean()), float(y.mean())
        self.x, self.y = x - self.middle[0], y - self.middle[1]
        self.loss, self.delta = loss, delta
        self.targets = self.log_loss if is_logarithmic(loss) else np.exp(self.log_loss)

    def law(self, theta: Matrix) -> tuple[Matrix, Matrix]:
        """Return the predictions [fits, points], in logarithms if the residuals are, and their Jacobian."""
        a, b, e, alpha, beta = theta.T[..., None]
        logs = np.stack(np.broadcast_arrays(a - alpha * self.x, b - beta * self.y, e), -1)
        top = logs.max(-1, keepdims=True)
        terms = np.exp(logs - top)
        total = terms.sum(-1, keepdims=True)
        shares, mu = terms / total, (top + np.log(total))[..., 0]
        slopes = -shares[..., :2] * np.stack([self.x, self.y], -1)
        jacobian = np.concatenate([shares, slopes], -1)
        if is_logarithmic(self.loss):
            return mu, jacobian
        return np.exp(mu), jacobian * np.exp(mu)[..., None]

    def objective(self, theta: Vector, delta: float) -> tuple[float, Vector]:
        """Return the sum of the losses, in a unit that suits the tolerances of the optimiser, and its gradient."""
        with np.errstate(over="ignore", invalid="ignore"):
            [mu], [jacobian] = self.law(theta[None])
            residuals = mu - self.targets
            unit = len(self.x) * (0.01 * delta if self.loss == "huber" else 1.0)
            slopes = residuals * residual_weight(residuals, self.loss, delta)
            return residual_loss(residuals, self.loss, delta).sum() / unit, slopes @ jacobian / unit

    def polish(self, theta: Vector, delta: float) -> Vector:
        """Return a local minimum by L-BFGS, started again from where it ends until nothing is gained."""
        options = {"maxiter": 500, "maxfun": 2000, "ftol": 1e-14, "gtol": 1e-9}
        for _ in range(MOST_RESTARTS):
            before, _ = self.objective(theta, delta)
            optimum = optimize.minimize(self.objective, theta, (delta,), jac=True, method="L-BFGS-B", options=options)
            theta = optimum.x
            if not optimum.fun < before * (1 - 1e-9):
                break
        return theta

    def best(self) -> Vector:
        """Return the best minimum from the grid of starts, at δ of Hoffmann et al., and from there at a smaller one."""
        width = max(self.delta, DELTA)
        minima, sums = minimise_many(self.law, self.targets, self.best_starts(self.targets), self.loss, width)
        theta = self.polish(minima[np.argmin(sums)], width)
        while self.loss == "huber" and width > self.delta:
            width = max(width / SMALLER, self.delta)
            theta = self.polish(theta, width)
        return theta

    def best_starts(self, targets: Vector) -> Matrix:
        """Return the best starts of the grid for some targets."""
        starts = np.array([*itertools.product(*GRID)])
        starts[:, 0] -= starts[:, 3] * self.middle[0]
        starts[:, 1] -= starts[:, 4] * self.middle[1]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = residual_loss(self.law(starts)[0] - targets, self.loss, max(self.delta, DELTA)).sum(-1)
        return starts[np.argsort(np.where(np.isfinite(sums), sums, math.inf), kind="stable")[:MOST_STARTS]]

    def resample(self, theta: Vector, counts: Matrix) -> Matrix:
        """Return the minima [fits, 5] where points count so often, from the minimum where each counts once."""
        together = max(1, MOST_TOGETHER // len(self.x))
        chunks = [counts[i : i + together] for i in range(0, len(counts), together)]
        minima = [
            minimise_many(self.law, self.targets, np.tile(theta, (len(chunk), 1)), self.loss, self.delta, chunk)[0]
            for chunk in chunks
        ]
        return np.concatenate([np.empty((0, len(theta))), *minima])

    def numbers(self, theta: Matrix) -> dict[str, Vector]:
        """Return the numbers of each law, in the units of the points; the logarithms of those in `LOGARITHMIC`."""
        a, b, e, alpha, beta = theta.T
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            first, second = a + alpha * self.middle[0], b + beta * self.middle[1]
            return {"α": alpha, "A": first, "β": beta, "B": second, "L∞": e, "a": beta / (alpha + beta)}
