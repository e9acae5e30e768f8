"""Statistics of a few paired seeds: intervals, tests, corrections and verdicts, computed with scipy.

The interval is Student's t over the per-seed differences: over 3 to 10 seeds it covers 93 to 97 % where bootstrap
intervals cover 71 to 89 %.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

Verdict = Literal["supported", "refuted", "inconclusive"]
LEVEL = 0.05
FEWEST_SEEDS = 4
"""Below this, intervals are so wide that a warning is due."""


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


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A claim's effect (positive where the claim says so), its p-value within the family, and the verdict."""

    effect: Estimate
    t: float
    p: float
    agreeing: int
    detectable: float
    p_holm: float = math.nan
    verdict: Verdict = "inconclusive"
    towards: bool = True


def estimate(values: Sequence[float], level: float = LEVEL, exact: bool = False) -> Estimate:
    """Mean and two-sided (1 − level) t-interval: mean ± t · sd / √n; a single exact value is its own interval."""
    x = np.asarray(values, float)
    n, mean = len(x), float(x.mean()) if len(x) else math.nan
    if exact and n == 1:
        return Estimate(mean, mean, mean, 0.0, 1)
    sd = float(x.std(ddof=1)) if n > 1 else math.nan
    half = float(special.stdtrit(n - 1, 1 - level / 2)) * sd / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean, mean - half, mean + half, sd, n)


def p_above(effect: Estimate, bound: float) -> float:
    """One-sided p-value of "the mean is above bound" (small p: it is)."""
    if math.isnan(effect.mean) or math.isnan(effect.sd):
        return 1.0
    if effect.error == 0:
        return 0.0 if effect.mean > bound else 1.0
    return float(special.stdtr(effect.n - 1, (bound - effect.mean) / effect.error))


def p_below(effect: Estimate, bound: float) -> float:
    """One-sided p-value of "the mean is below bound"."""
    return p_above(dataclasses.replace(effect, mean=-effect.mean), -bound)


def judge_difference(differences: Sequence[float], by: float = 0.0, exact: bool = False) -> Judgement:
    """Test "the mean difference exceeds by", two-sided, paired by seed."""
    effect = estimate(differences, exact=exact)
    above, below = p_above(effect, by), p_below(effect, by)
    return _judgement(differences, effect, min(1.0, 2 * min(above, below)), towards=above < below, reference=by)


def judge_equivalence(differences: Sequence[float], within: float, exact: bool = False) -> Judgement:
    """Two one-sided tests (TOST, Schuirmann 1987): p is small when the mean difference is surely inside ±within.

    When the difference is surely outside instead, p is that of the two-sided test of being outside.
    """
    effect = estimate(differences, exact=exact)
    inside = max(p_above(effect, -within), p_below(effect, within))
    outside = min(1.0, 2 * min(p_above(effect, within), p_below(effect, -within)))
    return _judgement(differences, effect, min(inside, outside), towards=inside < outside, reference=0.0)


def _judgement(differences: Sequence[float], effect: Estimate, p: float, towards: bool, reference: float) -> Judgement:
    agreeing = sum((difference > reference) == (effect.mean > reference) for difference in differences)
    t = (effect.mean - reference) / effect.error if effect.n > 1 and effect.error > 0 else math.nan
    return Judgement(effect, t, p, agreeing, detectable_effect(effect), towards=towards)


def detectable_effect(effect: Estimate, power: float = 0.8) -> float:
    """The difference that this many seeds with this spread would have found with the given power (approximate)."""
    if effect.n < 2:
        return math.nan
    quantiles = special.stdtrit(effect.n - 1, [1 - LEVEL / 2, power])
    return float(quantiles.sum()) * effect.error


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down adjusted p-values: comparing each with α bounds the family's error rate by α."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def with_verdicts(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Correct the family of claims with Holm and decide each: supported, refuted or inconclusive."""
    corrected = holm([judgement.p for judgement in judgements])
    decided = []
    for judgement, p in zip(judgements, corrected, strict=True):
        verdict: Verdict = "inconclusive" if p >= LEVEL else "supported" if judgement.towards else "refuted"
        decided.append(dataclasses.replace(judgement, p_holm=p, verdict=verdict))
    return decided


def proportion(successes: int, trials: int) -> tuple[float, float]:
    """Clopper-Pearson 95 % interval of a rate, such as the rate of divergence: two quantiles of Beta distributions."""
    others = trials - successes
    low = special.betaincinv(successes, others + 1, LEVEL / 2) if successes else 0.0
    high = special.betaincinv(successes + 1, others, 1 - LEVEL / 2) if others else 1.0
    return float(low), float(high)
