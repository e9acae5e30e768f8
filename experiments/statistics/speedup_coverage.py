"""How often does the interval of an effective speed-up cover the true one, for rare and frequent evaluations?

Draws learning curves of a known form per seed, and an arm that learns as much in one step as the baseline in a known
number; its speed-up is this number, which varies a little between seeds. Both are evaluated at a spacing, with noise,
and compared by flaxformer.analysis.speedup. Beside it stands a line from evaluation to evaluation in the step itself, with
the interval of the paired logarithms alone.
Command: python experiments/statistics/speedup_coverage.py (2 minutes on one core; the table is in docs/cost.md);
--draws N is the number of simulated comparisons per row.
"""

import argparse
import dataclasses
import itertools
import math

import numpy as np

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.speedup import speed_up
from flaxformer.statistics.judgement import judge_difference
from flaxformer.store.rows import Row

STEPS = 1000
METRIC = "validation_loss"
HEADER = (
    "evaluations",
    "speed-up",
    "curve",
    "refused",
    "covers",
    "width",
    "line in steps covers",
    "width of the line's",
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A simulated comparison: steps between evaluations, the true speed-up, and the form of the curves.

    The loss is E + A·(s + 20)^(−α) − decay·(s / S)⁴ after s of S steps: with `decay`, it falls again at the end, as by
    a learning rate that decays.
    """

    spacing: int = 100
    ratio: float = 0.7
    exponent: float = 0.5
    decay: float = 0.0
    seeds: int = 8
    sd: float = 0.03
    """Standard deviation of the logarithm of the speed-up between seeds."""
    noise: float = 0.002
    """Standard deviation of an evaluation, in nats."""

    def loss(self, steps: np.ndarray, amount: float) -> np.ndarray:
        """The noiseless curve of the baseline."""
        return 1.5 + amount * (steps + 20.0) ** -self.exponent - self.decay * (steps / STEPS) ** 4

    def draw(self, random: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the evaluations of the baseline and of the arm at each seed."""
        steps, found = np.arange(0, STEPS + 1, self.spacing), []
        for _ in range(self.seeds):
            amount = 4.0 * math.exp(0.05 * random.standard_normal())
            factor = self.ratio * math.exp(self.sd * random.standard_normal())
            curves = (self.loss(steps, amount), self.loss(factor * steps, amount))
            first, second = (own + self.noise * random.standard_normal(len(steps)) for own in curves)
            found.append((first, second))
        return found


SETTINGS = (
    *(Setting(spacing=spacing, ratio=ratio) for spacing in (1000, 500, 250, 100, 20) for ratio in (0.35, 0.7)),
    *(Setting(spacing=spacing, decay=0.1) for spacing in (250, 100, 20)),
    *(Setting(spacing=spacing, exponent=0.2) for spacing in (250, 100, 20)),
)


def arm_of(label: str, curves: list[np.ndarray], steps: list[int]) -> ArmSummary:
    """An arm with these curves."""
    rows = [
        Row(
            trial=f"arm={label},seed={seed}",
            group="all",
            seed=seed,
            status="done",
            evaluated_at=steps,
            flops_per_step=1.0,
            flops=float(STEPS),
            metrics={METRIC: float(curve[-1]), f"initial_{METRIC}": float(curve[0])},
            curves={METRIC: curve.tolist()},
        )
        for seed, curve in enumerate(curves)
    ]
    return ArmSummary({"arm": label}, [float(curve[-1]) for curve in curves], rows, 0)


def by_line(steps: list[int], baseline: np.ndarray, target: float) -> float:
    """log of the step at which straight lines between evaluations reach a target, divided by all steps."""
    best = np.minimum.accumulate(baseline)
    for (before, after), (low, high) in zip(itertools.pairwise(best), itertools.pairwise(steps), strict=True):
        if after <= target < before:
            return math.log((low + (before - target) / (before - after) * (high - low)) / STEPS)
    return 0.0


def rates(setting: Setting, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Share of comparisons that are refused, of the others that cover the truth, and median widths of log ratios."""
    steps, truth = list(range(0, STEPS + 1, setting.spacing)), math.log(setting.ratio)
    refused, covers, widths, line_covers, line_widths = [], [], [], [], []
    for _ in range(draws):
        curves = setting.draw(random)
        arms = [arm_of(label, [own[i] for own in curves], steps) for i, label in enumerate("ab")]
        found = speed_up(arms[1], arms[0])
        assert found is not None
        refused.append(bool(found.reason))
        if not found.reason:
            covers.append(found.log.low <= truth <= found.log.high)
            widths.append(found.log.high - found.log.low)
        line = judge_difference([by_line(steps, first, second[-1]) for first, second in curves]).effect
        line_covers.append(line.low <= truth <= line.high)
        line_widths.append(line.high - line.low)
    shares = {"refused": refused, "covers": covers, "line covers": line_covers}
    medians = {"width": widths, "line width": line_widths}
    return {name: float(np.mean(own)) if own else math.nan for name, own in shares.items()} | {
        name: float(np.median(own)) if own else math.nan for name, own in medians.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    arguments = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n" + "|---:" * len(HEADER) + "|")
    for setting in SETTINGS:
        found = rates(setting, arguments.draws, np.random.default_rng(0))
        form = f"α {setting.exponent:g}" + (f", decay {setting.decay:g}" if setting.decay else "")
        share = {name: "–" if math.isnan(own) else f"{100 * own:.1f} %" for name, own in found.items()}
        width = {name: "–" if math.isnan(own) else f"{own:.2f}" for name, own in found.items()}
        cells = [str(STEPS // setting.spacing), f"{setting.ratio:g}", form, share["refused"], share["covers"]]
        cells += [width["width"], share["line covers"], width["line width"]]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
