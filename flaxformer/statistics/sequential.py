"""Tests of a mean difference that may be looked at after every seed: e-processes and confidence sequences.

An e-process of a hypothesis is a non-negative process whose expectation is at most 1 at every stopping time if the
hypothesis is true. It exceeds 1/α at any time with a probability of at most α (Ville 1939), so that it may be watched
seed by seed and stopped at will. The hypothesis is "the mean difference is at most `bound`". Two are computed, and the
smaller one counts, which is an e-process if the assumption of either holds:

* `t_process`: differences are normal, with any variance (Pérez-Ortiz, Lardy, de Heide and Grünwald 2024, "E-statistics,
  group invariance and anytime-valid testing"). With S = Σ(x − b), A = Σ(x − b)², P = n + 1/τ² and C = A − S²/P, the
  Bayes factor of an effect δ = (μ − b)/σ with a half-normal prior of scale τ, against δ = 0, is

      E = 2 (1 + nτ²)^(−1/2) (A/C)^(n/2) F_n(S √(n / (P C))),

  where F_n is the distribution function of Student's t with n degrees of freedom.
* `sign_process`: differences are symmetric around their centre with one mode, of any form. Under the hypothesis a
  difference is as likely, or likelier, to be below b as to be as far above it; a bet of the part tanh(d √(1 + d²) |z|)
  on the sign, where z is the difference in units of the root mean square so far, multiplies the wealth by 1 ± the
  part. It is the likelihood ratio of a normal difference with the effect d, given its size. The wealth is the mean over
  several d (`EFFECTS`).

If a change has no effect at all, the two runs of a seed can be exchanged, and differences are symmetric whatever the
distribution of the losses. Neither assumption covers skewed differences whose mean is exactly the bound;
`experiments/statistics/ledger_error_rates.py` measures what happens then.

All functions work along the last axis, the seeds in the order in which they were trained.
"""

import math

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

PRIOR = 1.0
"""Scale τ of the prior of the effect in standard deviations."""
EFFECTS = (0.25, 0.5, 1.0, 2.0)
"""Effects in standard deviations between which the bets on signs divide the wealth at first."""
STEPS = 60
"""Halvings by which a limit of a confidence sequence is located; its relative error is then 2^-60 of the range."""
GRID = 64
"""Bounds that are tried on either side for a limit, in geometric distances from the mean."""


def t_process(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """Return log E after each seed, for normal differences; see the module.

    It grows with the mean for every sample, so that it is an e-process for every mean up to the bound.
    """
    x = np.asarray(differences, float) - bound
    n = np.arange(1, x.shape[-1] + 1)
    sums, squares = x.cumsum(-1), (x**2).cumsum(-1)
    precision = n + 1 / PRIOR**2
    with np.errstate(all="ignore"):
        remaining = squares - sums**2 / precision
        log_e = (
            math.log(2)
            - 0.5 * np.log1p(n * PRIOR**2)
            + n / 2 * (np.log(squares) - np.log(remaining))
            + np.log(special.stdtr(n, sums * np.sqrt(n / (precision * remaining))))
        )
    return np.where(squares > 0, log_e, 0.0)


def sign_process(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """Return log E after each seed, for differences that are symmetric with one mode; see the module."""
    x = np.asarray(differences, float) - bound
    n = np.arange(1, x.shape[-1] + 1)
    scale = np.sqrt((x**2).cumsum(-1) / n)
    with np.errstate(all="ignore"):
        z = np.where(scale > 0, x / scale, 0.0)
    wealth = []
    for effect in EFFECTS:
        slope = effect * math.sqrt(1 + effect**2)
        # 1 + tanh(a) = 2 / (1 + exp(−2a)), in logarithms
        wealth.append((math.log(2) - np.logaddexp(0, -2 * slope * z)).cumsum(-1))
    return np.logaddexp.reduce(wealth, axis=0) - math.log(len(EFFECTS))


def evidence(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """Return log E after each seed against "the mean difference is at most `bound`": the smaller of both processes."""
    return np.minimum(t_process(differences, bound), sign_process(differences, bound))


def confidence_sequence(differences: np.ndarray, level: float) -> tuple[float, float]:
    """Return the interval, at the last seed, of a sequence of intervals that all hold the mean with probability 1 − level.

    It has every bound that is rejected on neither side at level/2; infinite where no bound is rejected yet.

    Args:
      differences: of one attempt [seeds].
      level: probability that some interval of the sequence misses the mean.
    """
    x = np.asarray(differences, float)
    return -_upper_limit(-x, level / 2), _upper_limit(x, level / 2)


def upper_limit(differences: np.ndarray, level: float) -> float:
    """Return the one-sided limit: the mean is above it, at any seed of the sequence, with a probability of at most level."""
    return _upper_limit(np.asarray(differences, float), level)


def _upper_limit(x: np.ndarray, level: float) -> float:
    """The smallest bound from which on "the mean is at least the bound" is rejected at the last seed."""

    def is_rejected(bound: float) -> bool:
        return len(x) > 0 and float(evidence(-x, -bound)[-1]) >= -math.log(level)

    unit = float(np.abs(x - x.mean()).max()) if len(x) else 0.0
    if unit == 0.0:
        return math.inf if not len(x) or not is_rejected(_next_above(x[0])) else float(x[0])
    distances = unit * np.geomspace(1e-3, 1e3, GRID)
    rejected = [is_rejected(float(x.mean()) + distance) for distance in distances]
    if not rejected[-1]:
        return math.inf
    first = len(rejected) - rejected[::-1].index(False) if False in rejected else 0
    high = float(x.mean() + distances[first])
    low = float(x.mean() + (distances[first - 1] if first else 0.0))
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_rejected(middle) else (middle, high)
    return high


def _next_above(value: float) -> float:
    """A bound barely above a value that all differences have."""
    return value + max(abs(value), 1.0) * 1e-9
