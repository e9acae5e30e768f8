"""How often do the intervals of `flaxformer fit` cover the true values?

Draws points (N, D, L) of a known law L∞ + A·N^(−α) + B·D^(−β), with N and D evenly distributed over two factors of ten
each in the logarithm, and noise of log L from several families, fits them by Huber's loss of log residuals, and counts
how often the 95 % interval of each number holds its true value (`flaxformer.statistics.points_fit`). Tables of the same
N and D are fitted together, which gives what `fit_joint_law` gives for each.
Command: python experiments/statistics/points_coverage.py (20 minutes on one core; the table is in docs/error_rates.md);
--draws N is the number of simulated tables per row, --resamples N that of the resamples of each.
"""

import argparse
import math
from collections.abc import Callable, Mapping

import numpy as np

from flaxformer.statistics.law_losses import DELTA, minimise_many
from flaxformer.statistics.points_fit import LEVEL, LOGARITHMIC, MOST_STARTS, PARAMETERS, PointsProblem
from flaxformer.statistics.scaling_law import Matrix, Vector
from flaxformer.statistics.seed_bootstrap import widened_interval

LIMIT, A, ALPHA, B, BETA = 1.7, 400.0, 0.34, 410.0, 0.28
TRUTHS = {"α": ALPHA, "A": A, "β": BETA, "B": B, "L∞": LIMIT, "a": BETA / (ALPHA + BETA)}
SCALE = 0.01
"""Scale of the noise of log L."""
Noise = Callable[[np.random.Generator, int], Vector]
FAMILIES: Mapping[str, Noise] = {
    "normal": lambda random, n: random.standard_normal(n),
    "Student's t₃": lambda random, n: random.standard_t(3, n),
    "outliers": lambda random, n: random.standard_normal(n) * np.where(random.random(n) < 0.1, 10.0, 1.0),
    "exponential": lambda random, n: random.exponential(1.0, n) - np.log(2.0),
}
"""Noise of one point with the median 0, in units of `SCALE`."""
POINTS = (8, 30)
TABLES = 10
"""Number of tables of the same N and D."""
HEADER = ("noise", "points", *TRUTHS, "no law")


def draw(noise: Noise, n: int, tables: int, random: np.random.Generator) -> tuple[Vector, Vector, Matrix]:
    """Return N and D [n], and L [tables, n]."""
    sizes, tokens = 10 ** random.uniform(7, 9, n), 10 ** random.uniform(9, 11, n)
    losses = LIMIT + A * sizes**-ALPHA + B * tokens**-BETA
    return sizes, tokens, losses * np.exp(SCALE * np.array([noise(random, n) for _ in range(tables)]))


def intervals(
    sizes: Vector, tokens: Vector, losses: Matrix, resamples: int
) -> tuple[dict[str, Vector], dict[str, Matrix]]:
    """Return the estimates of each number [tables], and their intervals [tables, 2]; in logarithms of A, B and L∞."""
    tables, n = losses.shape
    problem, targets = PointsProblem(np.log([sizes, tokens, losses[0]]), "huber", DELTA), np.log(losses)
    starts = np.concatenate([problem.best_starts(own) for own in targets])
    minima, sums = minimise_many(problem.law, targets.repeat(MOST_STARTS, 0), starts, "huber")
    best = sums.reshape(tables, -1).argmin(-1) + MOST_STARTS * np.arange(tables)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), resamples).astype(float)
    again, begin = (one.repeat(resamples, 0) for one in (targets, minima[best]))
    drawn = minimise_many(problem.law, again, begin, "huber", counts=np.tile(counts, (tables, 1)))[0]
    values, draws = problem.numbers(minima[best]), problem.numbers(drawn)
    return values, {
        name: np.array([
            widened_interval(float(value), row, n, LEVEL, PARAMETERS)
            for value, row in zip(values[name], draws[name].reshape(tables, -1), strict=True)
        ])
        for name in TRUTHS
    }  # fmt: skip


def coverage(noise: Noise, n: int, draws: int, resamples: int, random: np.random.Generator) -> dict[str, float]:
    """Shares of simulated tables whose interval holds the true value, among those with a law; and of those without."""
    held: dict[str, list[bool]] = {name: [] for name in TRUTHS}
    for _ in range(draws // TABLES):
        values, ends = intervals(*draw(noise, n, TABLES, random), resamples)
        has_law = (values["α"] > 0) & (values["β"] > 0)
        for name, truth in TRUTHS.items():
            low, high = ends[name][has_law].T
            own = math.log(truth) if name in LOGARITHMIC else truth
            held[name] += [*((low <= own) & (own <= high))]
    return {name: float(np.mean(own)) for name, own in held.items()} | {"no law": 1 - len(held["α"]) / draws}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=100)
    arguments = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n|---|" + "---:|" * (len(HEADER) - 1))
    for n in POINTS:
        for name, noise in FAMILIES.items():
            shares = coverage(noise, n, arguments.draws, arguments.resamples, np.random.default_rng(0))
            cells = [name, str(n), *(f"{100 * share:.1f} %" for share in shares.values())]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
