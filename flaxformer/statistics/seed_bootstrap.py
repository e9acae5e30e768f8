"""Intervals of numbers that are fitted to a sample, such as means over seeds: the sample is drawn with replacement.

A percentile interval of a small sample is too narrow: the standard deviation over resamples of n is √((n − 1) / n) of
the standard error, and a normal quantile z stands where Student's t belongs. A factor on either half of the interval
makes up for both, t · √(n / (n − 1)) / z, which for a mean of normal numbers gives about Student's interval (Hesterberg
2015, "What Teachers Should Know About the Bootstrap", section 5.3). Of k fitted parameters, n − k stands for n − 1.
"""

import math

import numpy as np
from scipy import special

from flaxformer.statistics.scaling_law import Matrix, Vector
from flaxformer.statistics.scaling_tests import critical_t

RESAMPLES = 600
"""Number of resamples of an interval in a report."""


def resampled_means(scores: Matrix, resamples: int = RESAMPLES, seed: int = 0) -> Matrix:
    """Return the means over resampled seeds, [resamples, sizes], of scores [seeds, sizes]."""
    n = len(scores)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples)
    return counts @ scores / n


def widened_interval(
    centre: float, values: Vector, n: int, level: float = 0.05, parameters: int = 1
) -> tuple[float, float]:
    """Return the (1 − level) interval of an estimate from its values in resamples; an end may be infinite.

    Args:
      centre: the estimate.
      values: its value in each resample.
      n: size of the sample, above the number of parameters.
      level: 1 − the coverage of the interval.
      parameters: number of parameters that are fitted to the sample.
    """
    ends, free = np.quantile(values, [level / 2, 1 - level / 2], method="inverted_cdf"), n - parameters
    factor = critical_t(free + 1, level) * math.sqrt(n / free) / float(special.ndtri(1 - level / 2))
    return centre + factor * (float(ends[0]) - centre), centre + factor * (float(ends[1]) - centre)
