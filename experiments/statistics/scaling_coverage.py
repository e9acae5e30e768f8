"""How often do the intervals of scaling laws cover the true values?

Draws losses of two arms from known laws L∞ + A·C^(−α), with an offset per seed that all runs of the seed share and
noise per run, and counts how often the 95 % interval of each number holds its true value: by the rule of reports (score
tests over the seeds, flaxformer.statistics.scaling_tests), by the delta method with Student's t, and by a bootstrap over the
seeds of a fit with Huber's loss of log residuals (Hoffmann et al. 2022, δ = 10⁻³).
Command: python experiments/statistics/scaling_coverage.py (6 minutes on one core; the tables are in docs/scaling.md);
--draws N is the number of simulated studies per row, and --bootstrap N that of the last table.
"""

import argparse
import dataclasses
import functools
import math

import numpy as np
from scipy import optimize

from flaxformer.statistics import scaling_law, scaling_tests
from flaxformer.statistics.scaling_law import Functional, Matrix, Vector

LAWS = ((1.5, 1.5, 0.30), (1.45, 1.65, 0.33))
"""L∞, the loss above it at the smallest size, and α, of two arms; they cross inside the sizes."""
RESAMPLES = 200
HUBER = 1e-3
NUMBERS = ("α", "L∞", "A", "loss at 10 × C", "effect at 10 × C", "crossing", "held-out mean")
HEADER = ("seeds", "sizes", "range", "noise", *NUMBERS)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A simulated study: seeds, fitted sizes, ratio of the largest to the smallest, and noise in nats."""

    seeds: int = 8
    sizes: int = 5
    ratio: float = 100.0
    noise: float = 0.01

    @property
    def places(self) -> Vector:
        """log(C / C₀) of the fitted sizes, C₀ in the middle."""
        return np.linspace(-0.5, 0.5, self.sizes) * math.log(self.ratio)

    @property
    def beyond(self) -> float:
        """Place of ten times the largest size, which is held out."""
        return float(self.places[-1]) + math.log(10.0)

    def loss(self, arm: int, place: Vector | float) -> Vector:
        """True loss of an arm."""
        limit, above, exponent = LAWS[arm]
        return limit + above * np.exp(-exponent * (np.asarray(place) - self.places[0]))

    @property
    def crossing(self) -> float:
        """Place at which the true laws are equal."""
        grid = np.linspace(self.places[0], self.beyond, 200)
        gaps = self.loss(0, grid) - self.loss(1, grid)
        first = int(np.flatnonzero(np.diff(np.sign(gaps)))[0])
        gap = lambda place: float(self.loss(0, place) - self.loss(1, place))  # noqa: E731
        return float(optimize.brentq(gap, grid[first], grid[first + 1]))


SETTINGS = (
    Setting(),
    Setting(noise=0.03),
    Setting(seeds=5),
    Setting(seeds=16),
    Setting(sizes=4),
    Setting(ratio=10.0),
)
BOOTSTRAPPED = (Setting(), Setting(seeds=5))


def draw(setting: Setting, random: np.random.Generator) -> tuple[list[Matrix], Vector]:
    """Return the scores of both arms, the seeds as rows, and those of the first arm at the held-out size."""
    shared = setting.noise * random.standard_normal((setting.seeds, 1))

    def runs(losses: Vector) -> Matrix:
        return losses + shared + setting.noise * random.standard_normal((setting.seeds, len(losses)))

    arms = [runs(setting.loss(arm, setting.places)) for arm in range(2)]
    return arms, runs(np.atleast_1d(setting.loss(0, setting.beyond)))[:, 0]


def truths(setting: Setting) -> dict[str, tuple[Functional, float, int]]:
    """Return each number with its true value, and the number of arms that it is about."""
    limit, above, exponent = LAWS[0]
    x = setting.beyond
    log_amplitude = functools.partial(scaling_law.log_amplitude_of, log_unit=0.0)
    gap = float(setting.loss(0, x) - setting.loss(1, x))
    return {
        "α": (scaling_law.exponent_of, exponent, 1),
        "L∞": (scaling_law.limit_of, limit, 1),
        "A": (log_amplitude, math.log(above) + exponent * float(setting.places[0]), 1),
        "loss at 10 × C": (functools.partial(scaling_law.value_at, x=x), float(setting.loss(0, x)), 1),
        "effect at 10 × C": (functools.partial(scaling_law.difference_at, x=x), gap, 2),
        "crossing": (functools.partial(scaling_law.difference_at, x=setting.crossing), 0.0, 2),
    }


def coverage(setting: Setting, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Shares of studies whose interval covers the true value, by score tests and (names with "delta") by delta."""
    critical = scaling_tests.critical_t(setting.seeds)
    found: dict[str, list[bool]] = {}
    for _ in range(draws):
        arms, held_out = draw(setting, random)
        fits = [scaling_law.fit(setting.places, own.mean(0)) for own in arms]
        for name, (functional, truth, n) in truths(setting).items():
            law = scaling_law.law_at(*[setting.places] * n)
            scores, theta = np.hstack(arms[:n]), np.concatenate(fits[:n])
            value = functional(theta)[0]
            error = scaling_tests.standard_error(theta, law, scores, functional) if math.isfinite(value) else math.inf
            t, _ = scaling_tests.t_of_hypothesis((functional, truth), law, scores, theta)
            found.setdefault(name, []).append(not abs(t) > critical)
            found.setdefault(f"{name}, delta", []).append(not abs(value - truth) > critical * error)
        own, beyond = (scaling_law.law_at(np.atleast_1d(x)) for x in (setting.places, setting.beyond))
        _, low, high = scaling_tests.prediction_interval(fits[0], own, beyond, arms[0], held_out)
        found.setdefault("held-out mean", []).append(low <= held_out.mean() <= high)
    return {name: float(np.mean(own)) for name, own in found.items()}


def huber(x: Vector, scores: Matrix, start: Vector) -> Vector:
    """Fit p, q and α by Huber's loss of the log residuals of all runs."""
    logs = np.log(scores)

    def residuals(theta: Vector) -> Vector:
        return (np.log(np.maximum(scaling_law.curves(theta, [x])[0], 1e-9)) - logs).ravel()

    def jacobian(theta: Vector) -> Matrix:
        values, own = scaling_law.curves(theta, [x])
        return np.tile(own / np.maximum(values, 1e-9)[:, None], (len(scores), 1))

    return np.asarray(optimize.least_squares(residuals, start, jacobian, loss="huber", f_scale=HUBER).x)


def bootstrap_coverage(setting: Setting, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Shares of simulated studies whose percentile interval of the bootstrap covers the true value."""
    found: dict[str, list[bool]] = {}
    for _ in range(draws):
        arms, _ = draw(setting, random)
        fits = [huber(setting.places, own, scaling_law.fit(setting.places, own.mean(0))) for own in arms]
        values: dict[str, list[float]] = {}
        for _ in range(RESAMPLES):
            rows = random.integers(0, setting.seeds, setting.seeds)
            again = [huber(setting.places, own[rows], fit) for own, fit in zip(arms, fits, strict=True)]
            for name, (functional, _, n) in truths(setting).items():
                values.setdefault(name, []).append(functional(np.concatenate(again[:n]))[0])
        for name, (_, truth, _) in truths(setting).items():
            low, high = np.quantile(values[name], [0.025, 0.975])
            found.setdefault(name, []).append(bool(low <= truth <= high))
    del found["crossing"]
    return {name: float(np.mean(own)) for name, own in found.items()}


def cells(setting: Setting) -> list[str]:
    """The first columns of a row."""
    return [str(setting.seeds), str(setting.sizes), f"{setting.ratio:g}", f"{setting.noise:g}"]


def line(setting: Setting, shares: dict[str, float], suffix: str = "") -> str:
    """A row of a table in Markdown."""
    own = [shares.get(name + suffix) for name in NUMBERS]
    return "| " + " | ".join([*cells(setting), *("–" if one is None else f"{100 * one:.1f} %" for one in own)]) + " |"


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--bootstrap", type=int, default=100)
    arguments = parser.parse_args()
    top = "| " + " | ".join(HEADER) + " |\n" + "|---:" * len(HEADER) + "|"
    found = {setting: coverage(setting, arguments.draws, np.random.default_rng(0)) for setting in SETTINGS}
    for title, suffix in (("Score tests (reports)", ""), ("Delta method", ", delta")):
        print(f"\n{title}\n\n{top}")
        for setting, shares in found.items():
            print(line(setting, shares, suffix))
    print(f"\nHuber's loss, bootstrap over seeds\n\n{top}")
    for setting in BOOTSTRAPPED:
        print(line(setting, bootstrap_coverage(setting, arguments.bootstrap, np.random.default_rng(1))), flush=True)


if __name__ == "__main__":
    main()
