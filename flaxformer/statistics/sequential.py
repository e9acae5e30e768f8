"""Test of a mean difference that may be looked at after every seed: an e-process, and its confidence sequence.

An e-process of a hypothesis is a non-negative process whose expectation is at most 1 at every stopping time if the
hypothesis is true. It exceeds 1/α at any time with a probability of at most α (Ville 1939), so that it may be watched
seed by seed and stopped at will. The hypothesis here is "the mean difference is at most b".

It is tested by bets on signs. Let differences be symmetric around their centre with one mode, of any form, which may
differ between seeds. If the centre is at most b, then a difference is at most as likely to be above b as to be as far
below it, whatever its distance from b. With z_i = (x_i − b) / s_i, where s_i is 1.48 times the median distance from b
of the first i differences, and |z_i| is cut at 3, the wealth

    E_n = mean over d of Π_i (1 + tanh(d √(1 + d²) z_i))

is an e-process. The factor is the likelihood ratio of a normal difference whose mean is d standard deviations above b,
given its distance (d √(1 + d²) is the effect over the variance, in units of the root mean square). The mean is over
`EFFECTS`.

The e-process of the t-statistic (Pérez-Ortiz, Lardy, de Heide and Grünwald 2024, "E-statistics, group invariance and
anytime-valid testing") needs normal differences, which are symmetric with one mode, and no fewer seeds than these bets;
where one run in fifty diverges it needs about twice as many. It is therefore not used;
`experiments/statistics/ledger_error_rates.py` compares both.

If a change has no effect at all, the two runs of a seed can be exchanged, and differences are symmetric whatever the
distribution of the losses. Skewed differences whose mean is b are not covered; the same script says what happens then.

All functions work along the last axis, the seeds in the order in which they were trained.
"""

import math

import numpy as np

EFFECTS = (0.25, 0.5, 1.0, 2.0)
"""Effects d in standard deviations between which the bets divide the wealth at first."""
FARTHEST = 3.0
"""Distance, in standard deviations, from which on bets are alike, so that one outlier does not decide."""
NORMAL_MEDIAN = 0.6744897501960817
"""Median distance of a standard normal number from 0."""
GRID, ROUNDS = 64, 7
"""Bounds that are tried together for a limit of a confidence sequence, and number of times that they are refined."""
NEAREST, FARTHEST_BOUND = 1e-3, 1e3
"""Distances of the first bounds from the mean, in units of the largest distance of a difference from it."""


def evidence(differences: np.ndarray, bound: float | np.ndarray = 0.0) -> np.ndarray:
    """Return log E after each seed against "the mean difference is at most `bound`"; see the module.

    Several bounds are an array [bounds, 1].
    """
    x = np.asarray(differences, float) - bound
    distances = np.abs(x)
    medians = [np.median(distances[..., : i + 1], -1) for i in range(x.shape[-1])]
    scale = (np.stack(medians, -1) if medians else distances) / NORMAL_MEDIAN
    with np.errstate(all="ignore"):
        z = np.clip(np.where(x == 0, 0.0, x / scale), -FARTHEST, FARTHEST)
    wealth = []
    for effect in EFFECTS:
        slope = effect * math.sqrt(1 + effect**2)
        # 1 + tanh(a) = 2 / (1 + exp(−2a)), in logarithms
        wealth.append((math.log(2) - np.logaddexp(0, -2 * slope * z)).cumsum(-1))
    return np.logaddexp.reduce(wealth, axis=0) - math.log(len(EFFECTS))


def confidence_sequence(differences: np.ndarray, level: float) -> tuple[float, float]:
    """Return the interval at the last seed, of a sequence of which all hold the mean with a probability of 1 − level.

    It has every bound that is rejected on neither side at level/2; infinite where no bound is rejected yet.

    Args:
      differences: of one attempt [seeds].
      level: probability that some interval of the sequence misses the mean.
    """
    x = np.asarray(differences, float)
    return -_upper_limit(-x, level / 2), _upper_limit(x, level / 2)


def _upper_limit(x: np.ndarray, level: float) -> float:
    """The smallest bound from which on "the mean is at least the bound" is rejected at the last seed."""
    if not len(x):
        return math.inf
    mean = float(x.mean())
    unit = float(np.abs(x - mean).max()) or max(abs(mean), 1.0) * 1e-9
    bounds = np.concatenate([[mean], mean + unit * np.geomspace(NEAREST, FARTHEST_BOUND, GRID)])
    for _ in range(ROUNDS):
        rejected = evidence(-x, -bounds[:, None])[:, -1] >= -math.log(level)
        if not rejected[-1]:
            return math.inf
        last = int(np.flatnonzero(~rejected)[-1]) if not rejected.all() else 0
        bounds = np.linspace(bounds[last], bounds[last + 1], GRID)
    return float(bounds[-1])
