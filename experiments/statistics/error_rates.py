"""How often are the verdicts of a study wrong, for few seeds and for differences that are not normal?

Draws per-seed differences with a known mean and standard deviation 1, judges them by Student's t-test alone and by the
rule of reports (flaxformer.statistics.judgement), and counts. A verdict is false if it is supported or refuted although
the true mean difference is exactly the tested bound. Differences are skewed where one of two arms is, such as one that
sometimes fails, or where a number is compared with a constant; arms of the same distribution have symmetric ones.
Command: python experiments/statistics/error_rates.py (6 minutes on one core; the tables are in docs/error_rates.md);
with --calibrate, the factors of the skewness (flaxformer.statistics.paired_tests) instead.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flaxformer.analysis.explore import WEAK
from flaxformer.statistics import paired_tests
from flaxformer.statistics.corrections import benjamini_hochberg
from flaxformer.statistics.estimates import LEVEL
from flaxformer.statistics.judgement import FEWEST_SEEDS, holm, judge_difference, with_verdicts
from flaxformer.statistics.paired_tests import Kind

SEEDS = (3, 4, 5, 6, 8, 12, 16)
FAMILY = 4
POINTING = {"skewed", "outlier", "withheld for skewness", "withheld by signs"}
"""Qualifications that make a reader look at the seeds one by one."""
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """exp(N(0, 1)), centred and scaled: skewness 6.2."""
    mean, sd = np.exp(0.5), np.sqrt((np.e - 1) * np.e)
    return (random.lognormal(0.0, 1.0, shape) - mean) / sd


def _bimodal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Two modes of equal weight, 6.7 of their standard deviations apart; centred and scaled."""
    modes = random.choice((-1.0, 1.0), shape)
    return (modes + 0.3 * random.standard_normal(shape)) / np.sqrt(1 + 0.3**2)


def _outliers(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal, with ten times the standard deviation at one seed in ten; scaled."""
    sizes = np.where(random.random(shape) < 0.1, 10.0, 1.0)
    return sizes * random.standard_normal(shape) / np.sqrt(0.9 + 0.1 * 100)


def _unequal_modes(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Two modes of 30 % and 70 %, 20 of their standard deviations apart; centred and scaled."""
    modes = np.where(random.random(shape) < 0.3, 2.0, 0.0)
    return (modes + 0.1 * random.standard_normal(shape) - 0.6) / np.sqrt(0.3 * 0.7 * 4 + 0.1**2)


def _failing(share: float, cost: float) -> Draw:
    """Normal seeds, of which a share is off by `cost` standard deviations of the others, as by failed trainings."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        failed, noise = random.random(shape) < share, 1 / cost
        return (failed + noise * random.standard_normal(shape) - share) / np.sqrt(share * (1 - share) + noise**2)

    return draw


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "Student's t₃": lambda random, shape: random.standard_t(3, shape) / np.sqrt(3),
    "bimodal": _bimodal,
    "outliers": _outliers,
    "exponential": lambda random, shape: random.exponential(size=shape) - 1,
    "lognormal": _lognormal,
    "modes of 30 % and 70 %": _unequal_modes,
    "1 in 10 fails, by 10 sd": _failing(0.1, 10),
    "1 in 10 fails, by 30 sd": _failing(0.1, 30),
    "1 in 50 fails, by 10 sd": _failing(0.02, 10),
    "1 in 50 fails, by 30 sd": _failing(0.02, 30),
}
RARE = ("1 in 10 fails, by 30 sd", "1 in 50 fails, by 10 sd", "1 in 50 fails, by 30 sd")
"""Families that the table of false verdicts has alone."""
POWER = {name: draw for name, draw in DISTRIBUTIONS.items() if name not in RARE}
"""Families of the table of intervals and power."""


def t_verdicts(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """Return the verdicts of Student's t-test with Holm's correction along the last but one axis: 1, -1 or 0."""
    n = differences.shape[-1]
    t = (differences.mean(-1) - bound) / (differences.std(-1, ddof=1) / np.sqrt(n))
    return np.sign(t) * (_holm(2 * special.stdtr(n - 1, -np.abs(t))) < LEVEL)


def verdicts(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """Return the verdicts of `judge_difference` with Holm's correction along the last but one axis: 1, -1 or 0."""
    if differences.shape[-1] < FEWEST_SEEDS:
        return np.zeros(differences.shape[:-1])
    above = paired_tests.p_above(differences, bound)
    below = paired_tests.p_below(differences, bound)
    p = np.minimum(1.0, 2 * np.minimum(above, below))
    side = np.where(above < below, 1.0, -1.0)
    found = np.nonzero(p < LEVEL)  # the sign-flip test matters there alone
    agree = paired_tests.is_above((differences[found] - bound) * side[found][:, None], 0.0)
    p[found] = np.where(agree, p[found], 1.0)
    return side * (_holm(p) < LEVEL)


def _holm(p: np.ndarray) -> np.ndarray:
    """Holm's correction along the last axis."""
    order = np.argsort(p, -1, kind="stable")
    factors = np.arange(p.shape[-1], 0, -1)
    adjusted = np.maximum.accumulate(np.minimum(1.0, factors * np.take_along_axis(p, order, -1)), -1)
    result = np.empty_like(p)
    np.put_along_axis(result, order, adjusted, -1)
    return result


def t_equalities(differences: np.ndarray, margin: float) -> np.ndarray:
    """Return the verdicts of TOST by Student's t, and of the two-sided test that the mean is outside: 1, -1 or 0."""
    n = differences.shape[-1]
    mean, error = differences.mean(-1), differences.std(-1, ddof=1) / np.sqrt(n)
    inside = special.stdtr(n - 1, (np.abs(mean) - margin) / error)
    outside = 2 * special.stdtr(n - 1, (margin - np.abs(mean)) / error)
    return np.where(inside < LEVEL, 1.0, np.where(outside < LEVEL, -1.0, 0.0))


def equalities(differences: np.ndarray, margin: float) -> np.ndarray:
    """Return the verdicts of `judge_equivalence`, each of a claim alone: 1, -1 or 0."""
    result = np.zeros(differences.shape[:-1])
    if differences.shape[-1] < FEWEST_SEEDS:
        return result
    above, below = paired_tests.p_above, paired_tests.p_below
    inside = np.maximum(above(differences, -margin, "equality"), below(differences, margin, "equality"))
    outside = 2 * np.minimum(above(differences, margin), below(differences, -margin))
    found = np.nonzero((inside < LEVEL) & (inside < outside))
    own = differences[found]
    result[found] = paired_tests.is_above(own, -margin) & paired_tests.is_below(own, margin)
    found = np.nonzero((outside < LEVEL) & (outside <= inside))
    own = differences[found]
    result[found] = -1.0 * (paired_tests.is_above(own, margin) | paired_tests.is_below(own, -margin))
    return result


def false_rates(draw: Draw, n: int, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Shares of simulated studies with a false verdict, for a true mean at the bound (for equalities, at the margin).

    In pairs: by Student's t-test, and by the rule of reports.
    """
    drawn = draw(random, (draws, FAMILY, n))
    first = drawn[:, :1]
    sides = (1.0 + drawn[:, 0], 1.0 - drawn[:, 0])  # at the margin of 1, with either tail inside
    worst = max(sides, key=lambda own: float(np.mean(t_equalities(own, 1.0) != 0)))
    return {
        "t, one claim": _share(t_verdicts(first)[:, 0]),
        "one claim": _share(verdicts(first)[:, 0]),
        "t, family": _share(t_verdicts(drawn).any(-1)),
        "family": _share(verdicts(drawn).any(-1)),
        "t, equality": _share(t_equalities(worst, 1.0)),
        "equality": _share(equalities(worst, 1.0)),
    }


def found_rates(draw: Draw, n: int, draws: int, random: np.random.Generator) -> dict[str, float]:
    """Coverage of the intervals, and shares of true effects that are found, by Student's t-test and by the rule."""
    drawn = draw(random, (draws, 1, n))
    own = drawn[:, 0]
    error = special.stdtrit(n - 1, 0.975) * own.std(-1, ddof=1) / np.sqrt(n)
    low, high = paired_tests.interval(own, LEVEL)
    shares = {"t covers": _share(np.abs(own.mean(-1)) <= error), "covers": _share(np.asarray((low <= 0) & (high >= 0)))}
    for effect in (1.0, 2.0, 4.0):
        shares[f"t, {effect:g} sd"] = _share(t_verdicts(drawn + effect)[:, 0] > 0)
        shares[f"{effect:g} sd"] = _share(verdicts(drawn + effect)[:, 0] > 0)
    return shares


def _share(found: ArrayLike) -> float:
    return float(np.mean(np.asarray(found) != 0))


FALSE_HEADER = (
    "differences",
    "seeds",
    "one claim: t-test",
    "one claim",
    f"any of {FAMILY} claims: t-test",
    f"any of {FAMILY} claims",
    "equality: t-test",
    "equality",
)
FOUND_HEADER = (
    "differences",
    "seeds",
    "t-interval covers",
    "tested interval covers",
    "1 sd: t-test",
    "1 sd",
    "2 sd: t-test",
    "2 sd",
    "4 sd: t-test",
    "4 sd",
)


def table(
    header: Sequence[str],
    rates: Callable[..., dict[str, float]],
    distributions: Mapping[str, Draw],
    draws: int,
    seed: int = 0,
) -> str:
    """The Markdown table of some distributions and all numbers of seeds, in per cent."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    for name, draw in distributions.items():
        for n in SEEDS:
            shown = (f"{100 * share:.1f} %" for share in rates(draw, n, draws, np.random.default_rng(seed)).values())
            lines.append("| " + " | ".join((name, str(n), *shown)) + " |")
    return "\n".join(lines)


def repeated_looks(draws: int, seed: int = 0) -> float:
    """Share of false claims that a study decides if it adds seeds one by one, from 4 to 16, until it has a verdict."""
    drawn = np.random.default_rng(seed).standard_normal((draws, 1, max(SEEDS)))
    looks = [verdicts(drawn[..., :n])[:, 0] != 0 for n in range(FEWEST_SEEDS, max(SEEDS) + 1)]
    return _share(np.any(looks, axis=0))


def divergence_flags(n: int, draws: int, seed: int = 0) -> tuple[float, float]:
    """Share of studies in which rare divergence decides, and share of these with a qualification that points to it.

    The effect is 2 standard deviations of the seeds. At one seed in ten a run diverges and costs 10. The divergence is
    not recognised as one; where it is, the verdict without it is compared directly, and every such case is flagged.
    """
    random, cases, flagged = np.random.default_rng(seed), 0, 0
    for _ in range(draws):
        diverged = random.random(n) < 0.1
        differences = 2 + random.standard_normal(n) - 10 * diverged
        judged, without = (
            with_verdicts([judge_difference(list(own))])[0] for own in (differences, differences[~diverged])
        )
        if judged.verdict != without.verdict:
            cases += 1
            flagged += bool(POINTING & set(judged.qualifications))
    return cases / draws, flagged / max(cases, 1)


def hint_rates(levels: Sequence[int], n: int, draws: int, seed: int = 0) -> tuple[int, float, float]:
    """Number of contrasts of a study without any effect, and shares of its reports with a finding or hint.

    First without correction (p < 0.05 by Student's t, before any correction, and opposite to the effect at the
    baseline), then by the rule of reports.
    """
    random = np.random.default_rng(seed)
    arms = list(itertools.product(*map(range, levels)))
    pairs = [
        (arms.index(arm), arms.index((*arm[:axis], 0, *arm[axis + 1 :])), axis)
        for arm in arms
        for axis in range(len(levels))
        if arm[axis]
    ]
    baseline = [not any(label for i, label in enumerate(arms[a]) if i != axis) for a, _, axis in pairs]
    before = after = 0
    for _ in range(draws):
        scores = random.standard_normal((len(arms), n))
        x = np.stack([scores[a] - scores[b] for a, b, _ in pairs])
        known = {(axis, arms[a][axis]): x[i].mean() for i, (a, _, axis) in enumerate(pairs) if baseline[i]}
        is_opposite = [x[i].mean() * known[axis, arms[a][axis]] < 0 for i, (a, _, axis) in enumerate(pairs)]
        p = 2 * special.stdtr(n - 1, -np.abs(x.mean(-1)) / (x.std(-1, ddof=1) / np.sqrt(n)))
        before += bool(np.any((p < LEVEL) & is_opposite) or min(holm(list(p))) < LEVEL)
        after += _has_finding(x)
    return len(pairs), before / draws, after / draws


def _has_finding(differences: np.ndarray) -> bool:
    """True if a report names one of these contrasts."""
    above, below = paired_tests.p_above(differences, 0.0), paired_tests.p_below(differences, 0.0)
    side = np.where(above < below, 1.0, -1.0)
    p = np.minimum(1.0, 2 * np.minimum(above, below))
    near = np.nonzero(p < WEAK)[0]
    agree = paired_tests.is_above(differences[near] * side[near, None], 0.0)
    p[near] = np.where(agree, p[near], 1.0)
    return min(benjamini_hochberg(list(p))) < WEAK


def calibrated(n: int, kind: Kind, draws: int, seed: int = 0, step: float = 0.05) -> float:
    """Return the smallest factor of the skewness, in steps, at which false verdicts are as rare as the goal.

    At most 6 % for normal and exponential differences, and 8 % for lognormal ones.
    """
    goals = {"normal": 0.06, "exponential": 0.06, "lognormal": 0.08}
    random = np.random.default_rng(seed)
    samples = {name: DISTRIBUTIONS[name](random, (draws, n)) for name in goals}
    t = {name: x.mean(-1) / (x.std(-1, ddof=1) / np.sqrt(n)) for name, x in samples.items()}
    tails = {name: paired_tests.skewness(x) for name, x in samples.items()}
    low = special.stdtrit(n - 1, 1 - LEVEL / 2 if kind == "difference" else 1 - LEVEL)
    high = special.stdtrit(n - 1, 1 - LEVEL / 2)
    for factor in np.arange(0.0, 10.0, step):
        rates = {
            name: _share(
                (t[name] < -low * (1 + factor * np.maximum(tails[name], 0)))
                | (t[name] > high * (1 + factor * np.maximum(-tails[name], 0)))
            )
            for name in goals
        }
        if all(rates[name] <= goals[name] for name in goals):
            return float(factor)
    return float("nan")


def _print_tables(draws: int) -> None:
    print(table(FALSE_HEADER, false_rates, DISTRIBUTIONS, draws), end="\n\n")
    print(table(FOUND_HEADER, found_rates, POWER, draws))
    print(f"\nSeeds added one by one from 4 to 16 until a verdict: {repeated_looks(draws):.1%} of false claims decided")
    print("\nRare divergence decides (share of studies), and is flagged (share of these):")
    for n in (5, 6, 8, 12, 16):
        print(f"  {n} seeds: {' '.join(f'{share:.1%}' for share in divergence_flags(n, draws // 2))}")
    print("\nReports without any effect that name a finding: contrasts, uncorrected, by the rule of reports:")
    for levels in ((2, 3, 3), (4, 4, 4)):
        count, before, after = hint_rates(levels, 8, draws // 5)
        print(f"  {count}: {before:.1%} {after:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"Error rates of verdicts at the level {LEVEL}.")
    parser.add_argument("--draws", type=int, default=10_000, help="simulated studies per row")
    parser.add_argument("--calibrate", action="store_true", help="print the factors of the skewness instead")
    asked = parser.parse_args()
    if asked.calibrate:
        for kind, factors in paired_tests.SKEWNESS_FACTORS.items():
            for count, used in factors.items():
                print(f"{kind} {count}: smallest {calibrated(count, kind, 20 * asked.draws):.2f}, used {used}")
    else:
        _print_tables(asked.draws)
