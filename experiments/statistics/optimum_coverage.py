"""How often does the interval of a sweep's optimum cover the true optimum?

Draws the losses of a sweep over a learning rate: a parabola in ln(rate) per seed, whose minimum varies between seeds,
with an offset per seed and noise per run. The best rate by the mean over the seeds, its neighbours and the interval are
those of reports (flaxformer.statistics.parabola). Beside it stands a t-interval over the minima of the parabolas of
single seeds, which has none where a seed's parabola is not convex.
Command: python experiments/statistics/optimum_coverage.py (1 minute on one core; the table is in
docs/learning_rate.md); --draws N is the number of simulated sweeps per row.
"""

import argparse
import dataclasses
import math

import numpy as np

from flaxformer.statistics.estimates import estimate
from flaxformer.statistics.parabola import near_best, vertex

CURVATURE = 0.1
"""Loss in nats at a distance of 1 in ln(rate) from the minimum."""
OPTIMUM = 0.3
"""ln of the true optimum; that of the middle rate is 0."""
HEADER = ("seeds", "rates", "sd of the optimum", "noise", "covers", "bounded", "width", "t over minima", "convex")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A simulated sweep: seeds, rates a factor of 3 apart, sd of the minimum between seeds in ln(rate), noise in nats.

    The noise is `growth` times as large at the largest rate as at the smallest. `cubic` is the coefficient of a third
    power, by which the loss is not a parabola.
    """

    seeds: int = 5
    rates: int = 7
    sd: float = 0.1
    noise: float = 0.02
    growth: float = 1.0
    cubic: float = 0.0

    @property
    def places(self) -> np.ndarray:
        """ln(rate)."""
        return math.log(3) * (np.arange(self.rates) - self.rates // 2)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return losses [seeds, rates]."""
        x = self.places - OPTIMUM - self.sd * random.standard_normal((self.seeds, 1))
        sizes = self.noise * self.growth ** np.linspace(0, 1, self.rates)
        offset = 0.1 * random.standard_normal((self.seeds, 1))
        return CURVATURE * x**2 + self.cubic * x**3 + offset + sizes * random.standard_normal(x.shape)


SETTINGS = (
    *(Setting(seeds=n, sd=sd, growth=growth) for n in (3, 5, 8) for sd in (0.0, 0.1, 0.3) for growth in (1.0, 4.0)),
    *(Setting(seeds=n, rates=3, sd=0.3) for n in (3, 5, 8)),
    *(Setting(seeds=n, sd=0.3, noise=0.2) for n in (3, 5, 8)),
    *(Setting(seeds=n, sd=0.1, cubic=0.01) for n in (5, 8)),
)


def rates(setting: Setting, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Shares of simulated sweeps whose interval covers the optimum, or is bounded; the median width in ln(rate)."""
    covers, bounded, widths, by_seed, convex = [], [], [], [], []
    for _ in range(draws):
        losses = setting.draw(random)
        near = near_best(dict(zip(setting.places.tolist(), losses.mean(0).tolist(), strict=True)))
        own = losses[:, [setting.places.tolist().index(x) for x in near]]
        found = vertex(near, own)
        low, high = (-math.inf, math.inf) if found is None else (found.low, found.high)
        covers.append(low <= OPTIMUM <= high)
        bounded.append(math.isfinite(high - low))
        widths.append(high - low)
        minima = [one.x for row in own if (one := vertex(near, row[None])) is not None]
        convex.append(len(minima) == len(own))
        if convex[-1]:
            mean = estimate(minima)
            by_seed.append(mean.low <= OPTIMUM <= mean.high)
    shares = {"covers": covers, "bounded": bounded, "t over minima": by_seed, "convex": convex}
    return {name: float(np.mean(own)) if own else math.nan for name, own in shares.items()} | {
        "width": float(np.median(widths))
    }


def cells(setting: Setting) -> list[str]:
    """The first columns of a row."""
    grows = "" if setting.growth == 1 else f", × {setting.growth:g} at the largest rate"
    form = "" if not setting.cubic else f", {setting.cubic:g}·x³"
    return [str(setting.seeds), str(setting.rates), f"{setting.sd:g}", f"{setting.noise:g}{grows}{form}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    arguments = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n" + "|---:" * len(HEADER) + "|")
    for setting in SETTINGS:
        found = rates(setting, arguments.draws, np.random.default_rng(0))
        shown = {name: f"{100 * share:.1f} %" for name, share in found.items() if name != "width"}
        shown["width"] = "∞" if math.isinf(found["width"]) else f"{found['width']:.2f}"
        print("| " + " | ".join([*cells(setting), *(shown[name] for name in HEADER[4:])]) + " |", flush=True)


if __name__ == "__main__":
    main()
