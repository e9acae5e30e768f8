"""Variance between seeds by source of randomness: initialisation, data order and dropout, each varied alone."""

import dataclasses
import math
from collections.abc import Sequence

from scipy import special

from flaxformer.analysis.arms import ArmSummary
from flaxformer.statistics.estimates import LEVEL
from flaxformer.store.declaration import Declaration, Labels
from flaxformer.system.digests import JsonObject

SOURCES = {"init": "initialisation", "data": "data order", "dropout": "dropout"}
"""Fields of `Seeds`, and their names in reports."""
TOGETHER = "together"
"""Label of the arm in which all sources vary."""


@dataclasses.dataclass(frozen=True)
class SeedVariance:
    """Standard deviation of the metric of one arm over its seeds, with its 95 % interval.

    The interval is that of normal scores, sd · √((n − 1) / χ²), with the quantiles of χ² with n − 1 degrees of freedom.
    `share` is the variance divided by that of the arm in which all sources vary; NaN without such an arm.
    """

    labels: Labels
    sources: tuple[str, ...]
    """Sources of randomness that vary with the seed."""
    sd: float
    low: float
    high: float
    share: float
    n: int


def seed_variances(study: Declaration, arms: Sequence[ArmSummary]) -> list[SeedVariance]:
    """Return the variance of each arm of a study in which an arm fixes the seed of a source; else none."""
    by_labels = {_key(arm.labels): arm.arm for arm in study.arms}
    varied = [_varied_sources(study.recipes[by_labels[_key(arm.labels)]].run) for arm in arms]
    if all(len(sources) == len(SOURCES) for sources in varied):
        return []
    together = [arm.estimate for arm, sources in zip(arms, varied, strict=True) if len(sources) == len(SOURCES)]
    total = together[0].sd ** 2 if len(together) == 1 and together[0].n > 1 else math.nan
    return [_variance(arm, sources, total) for arm, sources in zip(arms, varied, strict=True)]


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _varied_sources(run: JsonObject) -> tuple[str, ...]:
    """Return the names of the sources that follow the seed, from the recipe of an arm."""
    fixed = run.get("seeds", {})
    return tuple(name for field, name in SOURCES.items() if fixed.get(field) is None)


def _variance(arm: ArmSummary, sources: tuple[str, ...], total: float) -> SeedVariance:
    estimate = arm.estimate
    low, high = sd_interval(estimate.sd, estimate.n)
    share = estimate.sd**2 / total if total else math.nan
    return SeedVariance(arm.labels, sources, estimate.sd, low, high, share, estimate.n)


def sd_interval(sd: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the two-sided (1 − level) interval of a standard deviation of n normal numbers; NaN for n below 2."""
    if n < 2:
        return math.nan, math.nan
    low, high = (sd * math.sqrt((n - 1) / special.chdtri(n - 1, tail)) for tail in (level / 2, 1 - level / 2))
    return low, high
