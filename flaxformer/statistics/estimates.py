"""Means over seeds with their intervals, and proportions with theirs."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval; low and high are NaN for a single seed."""

    mean: float
    low: float
    high: float
    sd: float
    n: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.n)

    def within(self, bounds: tuple[float, float]) -> "Estimate":
        """Return the estimate with its interval cut to the bounds of the true mean, which keeps its coverage."""
        low, high = bounds
        if not low <= self.mean <= high:
            return self
        return dataclasses.replace(self, low=max(self.low, low), high=min(self.high, high))


def estimate(values: Sequence[float], level: float = LEVEL, exact: bool = False) -> Estimate:
    """Return the mean and its two-sided (1 − level) t-interval mean ± t·sd/√n; of an exact value, the value itself."""
    x = np.asarray(values, float)
    n, mean = len(x), float(x.mean()) if len(x) else math.nan
    if exact and n == 1:
        return Estimate(mean, mean, mean, 0.0, 1)
    sd = float(x.std(ddof=1)) if n > 1 else math.nan
    half = float(special.stdtrit(n - 1, 1 - level / 2)) * sd / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean, mean - half, mean + half, sd, n)


def proportion(successes: int, trials: int) -> tuple[float, float]:
    """Return the Clopper-Pearson 95 % interval of a rate, such as the rate of divergence."""
    failures = trials - successes
    low = special.betaincinv(successes, failures + 1, LEVEL / 2) if successes else 0.0
    high = special.betaincinv(successes + 1, failures, 1 - LEVEL / 2) if failures else 1.0
    return float(low), float(high)
