"""How often do the intervals of joint scaling laws cover the true values?

Draws losses of one arm from a known law L∞ + A·N^(−α) + B·D^(−β) at a grid of parameters N and tokens D, with an offset
per seed that all runs of the seed share and noise per run, and counts how often the 95 % interval of each number holds
its true value, by the rule of reports: resampled seeds (flaxformer.statistics.seed_bootstrap) where Huber's loss of log
residuals is minimised, or score tests over the seeds (flaxformer.statistics.scaling_tests) where squares are.
Command: python experiments/statistics/joint_law_coverage.py (10 minutes on one core; the tables are in
docs/scaling.md); --loss NAME is what is minimised, --draws N the number of simulated studies per row.
"""

import argparse
import dataclasses
import functools
import math

import numpy as np

from flaxformer.analysis import joint_fit
from flaxformer.statistics import joint_law, scaling_tests
from flaxformer.statistics.law_losses import LOSSES, LawLoss
from flaxformer.statistics.scaling_law import Functional, Matrix, Vector

LIMIT, A, ALPHA, B, BETA = 1.2, 0.5, 0.35, 0.6, 0.3
"""The law, with N and D divided by the middle of their range."""
NUMBERS = ("α", "A", "β", "B", "L∞", "a", "loss at 10 × C", "held-out mean")
HEADER = ("seeds", "sizes", "range", "noise", *NUMBERS)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A simulated study: seeds, levels of N and of D, ratio of the largest to the smallest of each, noise in nats."""

    seeds: int = 8
    levels: int = 3
    ratio: float = 64.0
    noise: float = 0.003

    @property
    def places(self) -> tuple[Vector, Vector]:
        """log(N / N₀) and log(D / D₀) of the fitted sizes."""
        own = np.linspace(-0.5, 0.5, self.levels) * math.log(self.ratio)
        x, y = (grid.ravel() for grid in np.meshgrid(own, own))
        return x, y

    @property
    def beyond(self) -> float:
        """log(N / N₀) and log(D / D₀) of the held-out size: each √10 times that of the largest."""
        return 0.5 * math.log(10 * self.ratio)

    def loss(self, x: Vector, y: Vector) -> Vector:
        """True losses."""
        return LIMIT + A * np.exp(-ALPHA * np.asarray(x)) + B * np.exp(-BETA * np.asarray(y))


SETTINGS = (Setting(), Setting(noise=0.01), Setting(seeds=5), Setting(seeds=16), Setting(levels=4), Setting(ratio=16.0))
SETTINGS_OF = {"squares": SETTINGS, "log_squares": SETTINGS[:4], "huber": SETTINGS[:4]}
"""Settings of the table of each loss; resamples take longer than tests."""


def draw(setting: Setting, random: np.random.Generator) -> tuple[Matrix, Vector]:
    """Return the scores of the fitted sizes, the seeds as rows, and those of the held-out size."""
    x, y = (np.append(own, setting.beyond) for own in setting.places)
    shared = setting.noise * random.standard_normal((setting.seeds, 1))
    scores = setting.loss(x, y) + shared + setting.noise * random.standard_normal((setting.seeds, len(x)))
    return scores[:, :-1], scores[:, -1]


def truths(setting: Setting) -> dict[str, tuple[Functional, float]]:
    """Return each number with its true value."""
    far = setting.beyond
    of_parameters, of_tokens = (
        functools.partial(joint_law.log_amplitude_of, log_unit=0.0, is_of_tokens=is_of_tokens)
        for is_of_tokens in (False, True)
    )
    return {
        "α": (joint_law.alpha_of, ALPHA),
        "A": (of_parameters, math.log(A)),
        "β": (joint_law.beta_of, BETA),
        "B": (of_tokens, math.log(B)),
        "L∞": (joint_law.limit_of, LIMIT),
        "a": (joint_law.allocation_of, BETA / (ALPHA + BETA)),
        "loss at 10 × C": (
            functools.partial(joint_law.value_at, x=far, y=far),
            float(setting.loss(np.array(far), np.array(far))),
        ),
    }


def coverage(setting: Setting, draws: int, random: np.random.Generator, loss: LawLoss = "huber") -> dict[str, float]:
    """Shares of simulated studies whose interval covers the true value."""
    return (_tested if loss == "squares" else functools.partial(_resampled, loss=loss))(setting, draws, random)


def _resampled(setting: Setting, draws: int, random: np.random.Generator, loss: LawLoss) -> dict[str, float]:
    """By the intervals of resampled seeds."""
    found: dict[str, list[bool]] = {}
    for _ in range(draws):
        scores, held_out = draw(setting, random)
        theta = joint_law.fit(*setting.places, scores.mean(0), loss)
        estimate = joint_fit.estimates(*setting.places, scores, theta, loss)
        for name, (functional, truth) in truths(setting).items():
            one = estimate(functional)
            found.setdefault(name, []).append(one.low <= truth <= one.high)
        place = (setting.beyond, setting.beyond)
        one = joint_fit.predicted_mean(*setting.places, scores, place, held_out, loss)
        found.setdefault("held-out mean", []).append(bool(one.low <= held_out.mean() <= one.high))
    return {name: float(np.mean(own)) for name, own in found.items()}


def _tested(setting: Setting, draws: int, random: np.random.Generator) -> dict[str, float]:
    """By the score tests of true values."""
    critical = scaling_tests.critical_t(setting.seeds)
    law, beyond = joint_law.law_at(*setting.places), joint_law.law_at(*[np.array([setting.beyond])] * 2)
    found: dict[str, list[bool]] = {}
    for _ in range(draws):
        scores, held_out = draw(setting, random)
        theta = joint_law.fit(*setting.places, scores.mean(0), "squares")
        for name, hypothesis in truths(setting).items():
            t, _ = scaling_tests.t_of_hypothesis(hypothesis, law, scores, theta)
            found.setdefault(name, []).append(not abs(t) > critical)
        _, low, high = scaling_tests.prediction_interval(theta, law, beyond, scores, held_out)
        found.setdefault("held-out mean", []).append(bool(low <= held_out.mean() <= high))
    return {name: float(np.mean(own)) for name, own in found.items()}


def cells(setting: Setting) -> list[str]:
    """The first columns of a row."""
    return [str(setting.seeds), f"{setting.levels} × {setting.levels}", f"{setting.ratio:g}", f"{setting.noise:g}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--loss", choices=LOSSES, default="huber")
    arguments = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n" + "|---:" * len(HEADER) + "|")
    for setting in SETTINGS_OF[arguments.loss]:
        shares = coverage(setting, arguments.draws, np.random.default_rng(0), arguments.loss)
        own = [f"{100 * shares[name]:.1f} %" for name in NUMBERS]
        print("| " + " | ".join([*cells(setting), *own]) + " |", flush=True)


if __name__ == "__main__":
    main()
