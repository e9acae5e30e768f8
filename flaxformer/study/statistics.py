"""Statistics of a few paired seeds: intervals, tests, Holm's correction and verdicts.

The interval of an arm is Student's t. A claim is judged by the tests of `paired_tests`: a t-test whose standard error
is widened where the differences are skewed towards the tested bound, corrected over all claims by Holm's method; and a
sign-flip test, which must agree. The interval of a claim is the one that is tested: 95 % for a difference, 90 % for an
equality (TOST). Below 4 effective seeds there is no verdict.

False verdicts per 100 claims whose true mean difference is exactly the tested bound, by Student's t → by this rule:

| differences | 5 seeds | 8 seeds | 16 seeds |
|---|---:|---:|---:|
| normal | 4.8 → 2.7 | 5.1 → 3.1 | 5.1 → 4.1 |
| Student's t₃ | 4.1 → 2.5 | 4.0 → 3.0 | 4.4 → 4.0 |
| bimodal | 6.8 → 5.1 | 6.0 → 0.8 | 5.1 → 1.0 |
| exponential | 11.8 → 5.0 | 10.8 → 4.3 | 8.4 → 4.5 |
| lognormal | 17.8 → 7.5 | 17.8 → 7.6 | 13.8 → 7.6 |
| 1 in 10 fails | 22.8 → 13.3 | 29.1 → 22.0 | 18.1 → 17.8 |

`docs/verdicts.md` has the whole table, with families and power; experiments/statistics/error_rates.py computes both.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from flaxformer.study import paired_tests
from flaxformer.study.paired_tests import Kind

Verdict = Literal["supported", "refuted", "inconclusive"]
Qualification = Literal[
    "too few seeds",
    "few seeds",
    "zero variance",
    "ties",
    "skewed",
    "withheld for skewness",
    "outlier",
    "withheld by signs",
    "divergence decides",
]
"""Reason to read a verdict, or its absence, with care; `flaxformer.report.qualifications` has the sentences."""
LEVEL = 0.05
FEWEST_SEEDS = 4
"""Number of effective seeds below which there is no verdict."""
ENOUGH_SEEDS = 6
"""Number of effective seeds below which a verdict is qualified: of two equal arms, all differences have the same sign
with a probability of 2^(1 − n), which is above 5 % for up to 5 seeds."""


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
    """Test of a claim: its effect (positive in the claimed direction), p-values, and the verdict."""

    effect: Estimate
    """Mean difference with the interval that is tested."""
    t: float
    """Student's t statistic, without widening."""
    p: float
    agreeing: int
    """Number of seeds on the side of the mean; a seed at the reference is on neither side."""
    holding: int
    """Number of seeds at which the claim holds."""
    detectable: float
    """Effect that would be found with a probability of 80 %; of an equality, the margin that would be confirmed."""
    p_holm: float = math.nan
    verdict: Verdict = "inconclusive"
    is_towards: bool = True
    """True if the data are on the side of the claim."""
    kind: Kind = "difference"
    effective: int = 0
    """Number of seeds with a difference; 1 if all differences are equal."""
    distinct: int = 0
    """Number of different differences."""
    is_confirmed: bool = True
    """True if the sign-flip test agrees with the side on which the data are."""
    qualifications: tuple[Qualification, ...] = ()
    is_exact: bool = False
    """True for a number without uncertainty, of which one seed decides."""

    @property
    def can_decide(self) -> bool:
        """True if there are enough effective seeds, and the sign-flip test agrees."""
        return self.is_exact or (self.effective >= FEWEST_SEEDS and self.is_confirmed)


def estimate(values: Sequence[float], level: float = LEVEL, exact: bool = False) -> Estimate:
    """Return the mean and its two-sided (1 − level) t-interval mean ± t·sd/√n; of an exact value, the value itself."""
    x = np.asarray(values, float)
    n, mean = len(x), float(x.mean()) if len(x) else math.nan
    if exact and n == 1:
        return Estimate(mean, mean, mean, 0.0, 1)
    sd = float(x.std(ddof=1)) if n > 1 else math.nan
    half = float(special.stdtrit(n - 1, 1 - level / 2)) * sd / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean, mean - half, mean + half, sd, n)


def judge_difference(differences: Sequence[float], by: float = 0.0, exact: bool = False) -> Judgement:
    """Test the claim that the mean difference exceeds `by`: two-sided, paired by seed."""
    x, effect = np.asarray(differences, float), _tested(differences, "difference", exact)
    holding = sum(difference > by for difference in differences)
    if exact and effect.sd == 0:
        return _exact_judgement(effect, holding)
    if effect.n < 2:
        return _judgement(x, effect, "difference", by, 1.0, 1.0, holding, (False, True))
    above, below = float(paired_tests.p_above(x, by)), float(paired_tests.p_below(x, by))
    is_towards = above < below
    is_confirmed = bool((paired_tests.is_above if is_towards else paired_tests.is_below)(x, by))
    t = _t(effect, by)
    plain = 2 * float(special.stdtr(effect.n - 1, -abs(t)))
    p = min(1.0, 2 * min(above, below))
    return _judgement(x, effect, "difference", by, p, plain, holding, (is_towards, is_confirmed))


def judge_equivalence(differences: Sequence[float], within: float, exact: bool = False) -> Judgement:
    """Test the claim that the mean difference is within ±`within`: two one-sided tests (TOST, Schuirmann 1987).

    The p-value is the smaller of that of the TOST and that of the two-sided test that the mean is outside.
    """
    x, effect = np.asarray(differences, float), _tested(differences, "equality", exact)
    holding = sum(abs(difference) < within for difference in differences)
    if exact and effect.sd == 0:
        return _exact_judgement(effect, holding, "equality")
    if effect.n < 2:
        return _judgement(x, effect, "equality", 0.0, 1.0, 1.0, holding, (False, True))
    above, below = paired_tests.p_above, paired_tests.p_below
    inside = max(float(above(x, -within, "equality")), float(below(x, within, "equality")))
    outside = min(1.0, 2 * min(float(above(x, within)), float(below(x, -within))))
    is_towards = inside < outside
    if is_towards:
        is_confirmed = bool(paired_tests.is_above(x, -within) & paired_tests.is_below(x, within))
    else:
        is_confirmed = bool(paired_tests.is_above(x, within) | paired_tests.is_below(x, -within))
    ends = [_t(effect, -within), _t(effect, within)]
    tost = float(special.stdtr(effect.n - 1, max(-ends[0], ends[1])))
    plain = min(tost, 2 * float(special.stdtr(effect.n - 1, min(ends[0], -ends[1]))))
    return _judgement(x, effect, "equality", 0.0, min(inside, outside), plain, holding, (is_towards, is_confirmed))


def _tested(differences: Sequence[float], kind: Kind, exact: bool) -> Estimate:
    """The mean difference with the interval that is tested."""
    found = estimate(differences, exact=exact)
    if found.n < 2:
        return found
    level = LEVEL if kind == "difference" else 2 * LEVEL
    low, high = paired_tests.interval(np.asarray(differences, float), level, kind)
    return dataclasses.replace(found, low=float(low), high=float(high))


def _judgement(
    x: np.ndarray,
    effect: Estimate,
    kind: Kind,
    reference: float,
    p: float,
    plain: float,
    holding: int,
    sides: tuple[bool, bool],
) -> Judgement:
    """The judgement of differences with its qualifications; `plain` is the p-value without widening."""
    is_towards, is_confirmed = sides
    effective = paired_tests.effective_seeds(x)
    found: list[Qualification] = []
    if effect.n > 1 and effective == 1:
        found.append("zero variance")
    elif paired_tests.distinct_values(x) < effect.n:
        found.append("ties")
    if effective < ENOUGH_SEEDS:
        found.append("too few seeds" if effective < FEWEST_SEEDS else "few seeds")
    if effective >= FEWEST_SEEDS:
        if abs(float(paired_tests.skewness(x))) > 2 * _skewness_error(effect.n):
            found.append("skewed")
        if plain < LEVEL <= p:
            found.append("withheld for skewness")
        if paired_tests.has_outlier(x):
            found.append("outlier")
        if p < LEVEL and not is_confirmed:
            found.append("withheld by signs")
    return Judgement(
        effect,
        _t(effect, reference),
        p,
        _agreeing(x, reference),
        holding,
        detectable_effect(effect, kind=kind),
        is_towards=is_towards,
        kind=kind,
        effective=effective,
        distinct=paired_tests.distinct_values(x),
        is_confirmed=is_confirmed,
        qualifications=tuple(found),
    )


def _skewness_error(n: int) -> float:
    """Standard error of the sample skewness of n ≥ 3 normal numbers."""
    return math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))


def _exact_judgement(effect: Estimate, holding: int, kind: Kind = "difference") -> Judgement:
    """The judgement of a number without uncertainty: the claim holds or it does not."""
    is_towards = holding == effect.n
    return Judgement(
        effect, math.nan, 0.0, effect.n, holding, math.nan, is_towards=is_towards, kind=kind, is_exact=True
    )


def _agreeing(differences: np.ndarray, reference: float) -> int:
    """Number of differences on that side of the reference on which their mean is."""
    side = np.sign(np.mean(differences) - reference) if len(differences) else 0.0
    return int(np.sum(np.sign(differences - reference) == side)) if side else 0


def _t(effect: Estimate, reference: float) -> float:
    """The t statistic; NaN without variance."""
    return (effect.mean - reference) / effect.error if effect.n > 1 and effect.error > 0 else math.nan


def detectable_effect(effect: Estimate, family: int = 1, kind: Kind = "difference") -> float:
    """Return the effect that so many seeds of this sd find with a probability of 80 %, for normal differences.

    Of an equality, it is the margin within which a true difference of 0 would be confirmed. The level is that of the
    first step of Holm's method in a family of so many claims.
    """
    if effect.n < 2:
        return math.nan
    return paired_tests.detectable_in_sd(effect.n, LEVEL / family, kind) * effect.sd


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's (1979) step-down method, which controls the family-wise error rate."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by the method of Benjamini and Hochberg (1995), which controls the false discovery rate.

    If no effect is true, at least one adjusted value is below q with a probability of at most q.
    """
    adjusted, running, m = [1.0] * len(p_values), 1.0, len(p_values)
    for rank, index in reversed(list(enumerate(np.argsort(p_values, kind="stable"), start=1))):
        running = min(running, m / rank * p_values[index])
        adjusted[index] = running
    return adjusted


def with_verdicts(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Apply Holm's correction to a family of tests and set each verdict: supported, refuted or inconclusive.

    A test that cannot decide takes part with a p-value of 1.
    """
    corrected = holm([judgement.p if judgement.can_decide else 1.0 for judgement in judgements])
    decided = []
    for judgement, p in zip(judgements, corrected, strict=True):
        verdict: Verdict = "inconclusive" if p >= LEVEL else "supported" if judgement.is_towards else "refuted"
        detectable = detectable_effect(judgement.effect, len(judgements), judgement.kind)
        if judgement.is_exact:
            detectable = judgement.detectable
        decided.append(dataclasses.replace(judgement, p_holm=p, verdict=verdict, detectable=detectable))
    return decided


def proportion(successes: int, trials: int) -> tuple[float, float]:
    """Return the Clopper-Pearson 95 % interval of a rate, such as the rate of divergence."""
    others = trials - successes
    low = special.betaincinv(successes, others + 1, LEVEL / 2) if successes else 0.0
    high = special.betaincinv(successes + 1, others, 1 - LEVEL / 2) if others else 1.0
    return float(low), float(high)
