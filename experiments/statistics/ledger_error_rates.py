"""Error rates and power of a ledger of attempts, simulated through the package's own judgement.

Command: python experiments/statistics/ledger_error_rates.py [--ledgers 1000] [--paths 10000]
Source: Xu and Ramdas 2024 (e-LOND); Pérez-Ortiz et al. 2024 (e-processes of the t-statistic).
Cost: about 3 minutes on one core.
Expected: a false discovery rate of at most 5 % wherever paired differences are normal or symmetric with one mode, and
a probability of at most α that the evidence ever exceeds 1/α; more for skewed differences.

Three tables are printed:

1. Type I error: the share of paths of 400 pairs without effect whose evidence ever exceeds 1/α.
2. False discoveries: the mean share of false keeps among the keeps of ledgers of 100 attempts with up to 40 pairs each,
   of which none, or one in ten, has an effect (of 1 standard deviation); and the share of ledgers with a false keep.
   "correlated": the pairs of an attempt are correlated by 0.5 with those of the attempt before it, as if seeds were
   used again. "1 in 50 diverges": a run of either recipe diverges with a probability of 1 in 50, and then counts 30
   standard deviations worse.
3. Power: pairs until an effect is kept, beside the seeds of a one-sided t-test of fixed size with a power of 80 %, and
   beside the e-process of the t-statistic: with a half-normal prior of scale 1 of the effect, S = Σx, A = Σx²,
   P = n + 1 and C = A − S²/P, it is E = 2 (1 + n)^(−1/2) (A/C)^(n/2) F_n(S √(n / (P C))), where F_n is the distribution
   function of Student's t with n degrees of freedom.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from flaxformer.ledger.judge import KEPT, decide
from flaxformer.ledger.log import Begun
from flaxformer.statistics import online_testing, sequential

ATTEMPTS, PAIRS, EFFECT = 100, 40, 1.0
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
Process = Callable[[np.ndarray], np.ndarray]
E = math.e


def _arms(draw: Draw) -> Draw:
    """Differences of two runs with the same distribution of losses."""
    return lambda random, shape: draw(random, shape) - draw(random, shape)


def _diverging(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape) + 30 * (random.random(shape) < 0.02)


FAMILIES: dict[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "t3": lambda random, shape: random.standard_t(3, shape) / math.sqrt(3),
    "lognormal losses": _arms(lambda random, shape: random.lognormal(0, 1, shape) / math.sqrt(2 * E * (E - 1))),
    "1 in 50 diverges": _arms(_diverging),
    "lognormal differences, long tail of gains": lambda random, shape: (
        (random.lognormal(0, 1, shape) - math.sqrt(E)) / math.sqrt(E * (E - 1))
    ),
    "lognormal differences, long tail of losses": lambda random, shape: (
        (math.sqrt(E) - random.lognormal(0, 1, shape)) / math.sqrt(E * (E - 1))
    ),
    "exponential differences, long tail of losses": lambda random, shape: 1 - random.exponential(1, shape),
}
"""Paired differences with mean 0 by name."""


def begun(attempts: int = ATTEMPTS) -> Begun:
    """The declaration of the simulated ledgers."""
    return Begun(
        name="simulated", effect=EFFECT, metric="validation_loss", unit="nats", goal="lower", attempts=attempts,
        seeds=PAIRS, together=1, first_seed=0, tuning_seeds=3, confirmation_seeds=8, false_keeps=0.05,
        false_drops=0.05, recipe="", data="", semantics=0,
    )  # fmt: skip


def type_one_error(random: np.random.Generator, paths: int) -> None:
    """Print the share of paths whose evidence ever exceeds 1/α."""
    levels = (0.05, 0.005, 0.0005)
    print(f"\nType I error at the most favourable of 400 pairs, {paths:,} paths, for α = {levels}")
    for name, draw in FAMILIES.items():
        highest = np.concatenate([sequential.evidence(draw(random, (paths // 10, 400))).max(-1) for _ in range(10)])
        print(f"| {name} | " + " | ".join(f"{(highest >= -math.log(level)).mean():.4f}" for level in levels) + " |")


def false_discoveries(
    random: np.random.Generator, ledgers: int, draw: Draw, real: float, correlation: float
) -> tuple[float, float, float]:
    """Return the false discovery rate, the share of ledgers with a false keep, and the share of real effects kept."""
    has_effect = random.random((ledgers, ATTEMPTS)) < real
    kept_before, false, kept = np.zeros(ledgers), np.zeros(ledgers), np.zeros(ledgers)
    before = draw(random, (ledgers, PAIRS))
    for attempt in range(1, ATTEMPTS + 1):
        x = draw(random, (ledgers, PAIRS))
        if correlation:
            x = correlation * before + math.sqrt(1 - correlation**2) * x
            before = x
        x = x + EFFECT * has_effect[:, attempt - 1, None]
        weights = 0.05 * online_testing.weight(attempt, ATTEMPTS) * (kept_before + 1)
        _, ends = decide(x, begun(), weights)
        is_kept = ends == KEPT
        kept_before = kept_before + is_kept
        kept += is_kept
        false += is_kept & ~has_effect[:, attempt - 1]
    found = ((kept - false).sum() / has_effect.sum()) if has_effect.any() else math.nan
    return float((false / np.maximum(kept, 1)).mean()), float((false > 0).mean()), float(found)


def t_process(x: np.ndarray) -> np.ndarray:
    """Return log E of the t-statistic after each seed, for normal differences."""
    n = np.arange(1, x.shape[-1] + 1)
    sums, squares = x.cumsum(-1), (x**2).cumsum(-1)
    remaining = squares - sums**2 / (n + 1)
    ratio = n / 2 * (np.log(squares) - np.log(remaining))
    return math.log(2) - 0.5 * np.log1p(n) + ratio + np.log(special.stdtr(n, sums * np.sqrt(n / ((n + 1) * remaining))))


def pairs_needed(process: Process, x: np.ndarray, level: float) -> tuple[float, float]:
    """Return the mean number of pairs until the evidence suffices, and the number that suffices in 80 % of cases."""
    reached = process(x) >= -math.log(level)
    first = np.where(reached.any(-1), reached.argmax(-1) + 1, x.shape[-1])
    return float(first.mean()), float(np.quantile(first, 0.8))


def power(random: np.random.Generator) -> None:
    """Print the pairs that an effect needs, beside a fixed test with a power of 80 %."""
    print("\nPairs until an effect of d standard deviations is kept (normal differences)")
    print("| d | α | fixed t-test | mean pairs | ratio | pairs for 80 % | ratio | t-statistic: mean | for 80 % |")
    for effect in (1.0, 0.5):
        for level in (0.05, 0.005, 0.0005):
            fixed = next(
                n for n in range(2, 2000)
                if stats.nct.sf(stats.t.isf(level, n - 1), n - 1, effect * math.sqrt(n)) >= 0.8
            )  # fmt: skip
            x = random.standard_normal((2000, 400)) + effect
            (mean, most), (t_mean, t_most) = (pairs_needed(p, x, level) for p in (sequential.evidence, t_process))
            cells = [effect, level, fixed, f"{mean:.1f}", f"{mean / fixed:.2f}", f"{most:.0f}", f"{most / fixed:.2f}"]
            print("| " + " | ".join(map(str, [*cells, f"{t_mean:.1f}", f"{t_most:.0f}"])) + " |")
    x = _arms(_diverging)(random, (2000, 100)) + 1.0
    (mean, _), (t_mean, _) = (pairs_needed(process, x, 0.005) for process in (sequential.evidence, t_process))
    print(f"\n1 in 50 diverges, d = 1 of the other runs, α = 0.005: {mean:.1f} pairs; by the t-statistic {t_mean:.1f}")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--paths", type=int, default=10_000)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    type_one_error(random, arguments.paths)
    print(f"\n{arguments.ledgers:,} ledgers of {ATTEMPTS} attempts: false discovery rate, ledgers with a false keep")
    print("| differences | none real: FDR | 1 in 10 real: FDR | with a false keep | real ones kept |")
    for name, draw in FAMILIES.items():
        null, _, _ = false_discoveries(random, arguments.ledgers, draw, 0.0, 0.0)
        mixed, any_false, found = false_discoveries(random, arguments.ledgers, draw, 0.1, 0.0)
        print(f"| {name} | {null:.3f} | {mixed:.3f} | {any_false:.3f} | {found:.2f} |")
    null, _, _ = false_discoveries(random, arguments.ledgers, FAMILIES["normal"], 0.0, 0.5)
    mixed, any_false, found = false_discoveries(random, arguments.ledgers, FAMILIES["normal"], 0.1, 0.5)
    print(f"| normal, correlated | {null:.3f} | {mixed:.3f} | {any_false:.3f} | {found:.2f} |")
    power(random)


if __name__ == "__main__":
    main()
