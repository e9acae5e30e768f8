"""Two tests of the mean of a few paired differences: a t-test widened by skewness, and a sign-flip test.

Student's t-test is wrong too often for skewed differences: of 5 exponential differences, it decides 12 % where 5 % is
nominal, because seeds that miss the long tail underestimate both the distance to the bound and the standard deviation.
Here the standard error is therefore multiplied by 1 + k·g, where g is the sample skewness if the long tail points to
the tested bound, and 0 otherwise. `SKEWNESS_FACTORS` has k for each number of seeds; it was found by simulation, not
derived: the smallest value for which a false verdict has a probability of at most 6 % for normal and exponential
differences and of at most 8 % for lognormal ones (`python experiments/statistics/error_rates.py --calibrate`).

All functions work along the last axis, so that simulations judge many studies at once.
"""

import functools
import itertools
import math
from typing import Literal, TypeAlias

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

Kind: TypeAlias = Literal["difference", "equality"]
Differences: TypeAlias = np.ndarray
"""Differences of one or several studies, the seeds along the last axis."""
Values: TypeAlias = np.ndarray
"""One number per study."""

SKEWNESS_FACTORS: dict[Kind, dict[int, float]] = {
    "difference": {
        4: 5.7, 5: 2.6, 6: 1.7, 7: 1.25, 8: 1.0, 9: 0.8, 10: 0.7, 11: 0.6, 12: 0.5, 13: 0.5, 14: 0.45, 15: 0.4, 16: 0.35
    },
    "equality": {
        4: 5.7, 5: 7.0, 6: 3.5, 7: 2.35, 8: 1.75, 9: 1.4, 10: 1.2, 11: 1.05, 12: 0.95, 13: 0.85, 14: 0.75,
        15: 0.7, 16: 0.65,
    },
}  # fmt: skip
"""Factor k of the skewness by number of seeds: for tests of a difference (two-sided) and of an equality (TOST).

For fewer than 4 seeds nothing is decided; for more than 16, k falls as 1/n. At 4 seeds no k reaches the goal for
equalities: 7 % for exponential and 10 % for lognormal differences remain.
"""
SIGN_FLIP_LEVEL = 0.05
"""One-sided level of the sign-flip test; 2^-n at 4 seeds, where it needs every seed on one side."""
MOST_ENUMERATED = 16
"""Number of seeds up to which every assignment of signs is enumerated; beyond, 65,536 random ones are drawn."""


MANY = 1000
"""Number of seeds above which tables over simulated samples are replaced by their limits for many seeds.

The sign-flip test is then that of the normal distribution, with an error of the order of Σx⁴ / (Σx²)²; and simulated
means, standard deviations and skewnesses are drawn from their distributions, not computed from simulated seeds.
"""


def skewness_factor(n: int, kind: Kind = "difference") -> float:
    """Return the factor k of the skewness for a number of seeds."""
    factors = SKEWNESS_FACTORS[kind]
    most = max(factors)
    return factors[most] * most / n if n > most else factors.get(n, 0.0)


def skewness(differences: Differences) -> Values:
    """Return the adjusted sample skewness G₁, as scipy.stats.skew(bias=False); 0 without variance and below 3 seeds."""
    n = differences.shape[-1]
    centred = differences - differences.mean(-1, keepdims=True)
    square = (centred**2).mean(-1)
    if n < 3:
        return np.zeros(square.shape)
    with np.errstate(all="ignore"):
        skew = (centred**3).mean(-1) / square**1.5 * math.sqrt(n * (n - 1)) / (n - 2)
    return np.where(square > 0, skew, 0.0)


def standard_errors(differences: Differences, kind: Kind = "difference") -> tuple[Values, Values]:
    """Return the standard error of the mean for bounds below the mean and for bounds above it, widened by skewness."""
    n = differences.shape[-1]
    error = differences.std(-1, ddof=1) / math.sqrt(n)
    tail = skewness_factor(n, kind) * skewness(differences)
    return error * (1 + np.maximum(-tail, 0)), error * (1 + np.maximum(tail, 0))


def p_above(differences: Differences, bound: float, kind: Kind = "difference") -> Values:
    """Return the one-sided p-value of the widened t-test for the alternative that the mean is above a bound."""
    n = differences.shape[-1]
    gap, (error, _) = differences.mean(-1) - bound, standard_errors(differences, kind)
    with np.errstate(all="ignore"):
        p = special.stdtr(n - 1, -gap / error)
    return np.where(error > 0, p, np.where(gap > 0, 0.0, 1.0))


def p_below(differences: Differences, bound: float, kind: Kind = "difference") -> Values:
    """Return the one-sided p-value of the widened t-test for the alternative that the mean is below a bound."""
    return p_above(-differences, -bound, kind)


def interval(differences: Differences, level: float, kind: Kind = "difference") -> tuple[Values, Values]:
    """Return the interval of all bounds that the widened t-test does not reject at level/2 on either side."""
    below, above = standard_errors(differences, kind)
    quantile, mean = float(special.stdtrit(differences.shape[-1] - 1, 1 - level / 2)), differences.mean(-1)
    return mean - quantile * below, mean + quantile * above


def sign_flip_p(differences: Differences) -> Values:
    """Return the one-sided p-value of the sign-flip test (Fisher 1935) for the alternative that the mean is above 0.

    It is the share of all assignments of signs to the differences whose sum is at least the observed one. It is exact
    for differences that are symmetric around 0, of any form, and may differ between seeds.
    """
    n = differences.shape[-1]
    observed = differences.sum(-1)
    if n > MANY:
        return _normal_sign_flip_p(differences, observed)
    signs = _signs(n)
    tolerance = 1e-9 * np.abs(differences).sum(-1)
    count = np.zeros(observed.shape)
    for chunk in np.array_split(signs, max(1, len(signs) * observed.size // 2**22)):
        count += (differences @ chunk.T >= (observed - tolerance)[..., None]).sum(-1)
    return count / len(signs)


def _normal_sign_flip_p(differences: Differences, observed: Values) -> Values:
    """The p-value of the sign-flip test for many seeds: the sum of ±x is nearly normal, with the variance Σ x²."""
    deviation = np.sqrt((differences**2).sum(-1))
    with np.errstate(all="ignore"):
        return np.where(deviation > 0, special.ndtr(-observed / deviation), 1.0)


@functools.lru_cache(maxsize=4)
def _signs(n: int) -> np.ndarray:
    if n <= MOST_ENUMERATED:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    drawn = np.random.default_rng(n).choice((1.0, -1.0), (2**MOST_ENUMERATED, n))
    return np.concatenate([np.ones((1, n)), drawn])


def is_above(differences: Differences, bound: float) -> np.ndarray:
    """True where the sign-flip test agrees that the mean is above a bound."""
    level = max(SIGN_FLIP_LEVEL, 2.0 ** -differences.shape[-1])
    return sign_flip_p(differences - bound) <= level + 1e-12


def is_below(differences: Differences, bound: float) -> np.ndarray:
    """True where the sign-flip test agrees that the mean is below a bound."""
    return is_above(-differences, -bound)


def has_outlier(differences: Differences) -> np.ndarray:
    """True where differences are far from the others, by either of two tests at the 5 % level for normal differences.

    The test of Grubbs (1950) measures the distance of one from the mean in standard deviations. Several hide each other
    from it; the second test measures the distance from the middle of the shortest half in units of its width.
    """
    n = differences.shape[-1]
    if n < 4:
        return np.zeros(differences.shape[:-1], bool)
    sd = differences.std(-1, ddof=1)
    distance = np.abs(differences - differences.mean(-1, keepdims=True)).max(-1)
    t2 = float(special.stdtrit(n - 2, 1 - 0.05 / (2 * n))) ** 2
    is_far = distance > sd * (n - 1) / math.sqrt(n) * math.sqrt(t2 / (n - 2 + t2))
    distance, width = _from_shortest_half(differences)
    return is_far | (distance > _farthest_of_normal(n) * width)


def _from_shortest_half(differences: Differences) -> tuple[Values, Values]:
    """Return the largest distance from the middle of the shortest half (n // 2 + 1 neighbours), and its width."""
    ordered = np.sort(differences, -1)
    n = ordered.shape[-1]
    half = n // 2 + 1
    widths = ordered[..., half - 1 :] - ordered[..., : n - half + 1]
    first = widths.argmin(-1)[..., None]
    chosen = first + np.arange(half)
    middle = np.take_along_axis(ordered, chosen, -1).mean(-1, keepdims=True)
    return np.abs(differences - middle).max(-1), widths.min(-1)


def _farthest_of_normal(n: int) -> float:
    """The 95 % quantile of the distance from the shortest half, in widths, over samples of normal numbers.

    There are 20,000 samples; of many seeds, whose number counts to two digits, there are 1,000.
    """
    digits = 10 ** max(0, len(str(n)) - 2)
    return _farthest(20_000, n) if n <= MANY else _farthest(1_000, n // digits * digits)


@functools.lru_cache(maxsize=256)
def _farthest(samples: int, n: int) -> float:
    drawn, ratios = np.random.default_rng(0), []
    for begin in range(0, samples, together := max(1, 2**25 // n)):
        distance, width = _from_shortest_half(drawn.standard_normal((min(together, samples - begin), n)))
        ratios.append(distance / width)
    return float(np.quantile(np.concatenate(ratios), 0.95))


def distinct_values(differences: Differences) -> np.ndarray:
    """Return the number of different values among the differences of a study, to six digits of the largest."""
    if not differences.shape[-1]:
        return np.zeros(differences.shape[:-1], int)
    largest = 1e-6 * np.abs(differences).max(-1)
    unit = np.where(largest > 0, largest, 1.0)
    return 1 + (np.diff(np.sort(differences, -1)) > unit[..., None]).sum(-1)


def effective_seeds(differences: Differences) -> np.ndarray:
    """Return the number of seeds with a difference; 1 if all are equal, since the seed then has no visible effect."""
    n = differences.shape[-1]
    return np.where(distinct_values(differences) < 2, min(n, 1), n)


@functools.lru_cache(maxsize=256)
def detectable_in_sd(n: int, level: float, kind: Kind = "difference", power: float = 0.8) -> float:
    """Return the effect, in standard deviations of normal differences, that the widened t-test finds with a power.

    For an equality, it is the margin that the test confirms with this power if the true difference is 0. Both are
    quantiles over 20,000 simulated studies.
    """
    mean, below, above = _simulated_means(n, kind)
    if kind == "difference":
        needed = float(special.stdtrit(n - 1, 1 - level / 2)) * below - mean
    else:
        quantile = float(special.stdtrit(n - 1, 1 - level))
        needed = np.maximum(quantile * below - mean, quantile * above + mean)
    return float(np.quantile(needed, power))


def _simulated_means(n: int, kind: Kind) -> tuple[Values, Values, Values]:
    """Means of n normal differences in 20,000 studies, and both of their standard errors (see `standard_errors`)."""
    drawn = np.random.default_rng(0)
    if n <= MANY:
        draws = drawn.standard_normal((20_000, n))
        return draws.mean(-1), *standard_errors(draws, kind)
    mean = drawn.standard_normal(20_000) / math.sqrt(n)
    error = np.sqrt(drawn.chisquare(n - 1, 20_000) / (n - 1) / n)
    tail = skewness_factor(n, kind) * math.sqrt(6 / n) * drawn.standard_normal(20_000)
    return mean, error * (1 + np.maximum(-tail, 0)), error * (1 + np.maximum(tail, 0))
