"""Statistics of a few paired seeds: intervals, tests, Holm's correction and verdicts.

The interval of an arm is Student's t. A claim is judged by the tests of `paired_tests`: a t-test whose standard error
is widened where the differences are skewed towards the tested bound, corrected over all claims by Holm's method; and a
sign-flip test, which must agree. The interval of a claim is the one that is tested: 95 % for a difference, 90 % for an
equality (TOST). Below 4 effective seeds there is no verdict.

False verdicts per 100 claims whose true mean difference is exactly the tested bound, by Student's t → by this rule:

| differences | 5 seeds | 8 seeds | 16 seeds |
|---|---:|---:|---:|
| normal | 4.8 → 2.7 | 5.1 → 3.1 | 5.1 → 4.1 |
| exponential | 11.8 → 5.0 | 10.8 → 4.3 | 8.4 → 4.5 |
| lognormal | 17.8 → 7.5 | 17.8 → 7.6 | 13.8 → 7.6 |
| modes of 30 % and 70 % | 17.6 → 16.4 | 7.1 → 5.9 | 5.7 → 0.8 |
| 1 in 10 fails, by 30 sd | 58.6 → 44.2 | 42.7 → 42.3 | 18.7 → 18.7 |
| 1 in 50 fails, by 30 sd | 16.0 → 9.4 | 26.5 → 18.7 | 44.9 → 40.4 |

`docs/error_rates.md` has the whole table, with families and power; experiments/statistics/error_rates.py computes both.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from flaxformer.statistics import paired_tests
from flaxformer.statistics.corrections import holm
from flaxformer.statistics.estimates import LEVEL, Estimate, estimate
from flaxformer.statistics.paired_tests import Kind

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
    "not finite",
    "simple effects",
    "divergence decides",
    "unequal cost",
]
"""Reason to read a verdict, or its absence, with care; `flaxformer.report.qualifications` has the sentences."""
FEWEST_SEEDS = 4
"""Number of effective seeds below which there is no verdict."""
MOST_TOGETHER = 2**21
"""Number of differences of several claims that are judged together, for the sake of memory."""
ENOUGH_SEEDS = 6
"""Number of effective seeds below which a verdict is qualified: of two equal arms, all differences have the same sign
with a probability of 2^(1 − n), which is above 5 % for up to 5 seeds."""


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


def judge_difference(differences: Sequence[float], by: float = 0.0, exact: bool = False) -> Judgement:
    """Test the claim that the mean difference exceeds `by`: two-sided, paired by seed."""
    return judge_differences([differences], by, exact)[0]


def judge_differences(many: Sequence[Sequence[float]], by: float = 0.0, exact: bool = False) -> list[Judgement]:
    """Return `judge_difference` of each of many claims; those with as many seeds are computed together."""
    sizes: dict[int, list[int]] = {}
    for place, differences in enumerate(many):
        sizes.setdefault(len(differences), []).append(place)
    judgements: dict[int, Judgement] = {}
    for n, places in sizes.items():
        together = max(1, MOST_TOGETHER // max(n, 1))
        for begin in range(0, len(places), together):
            chunk = places[begin : begin + together]
            x = np.array([many[place] for place in chunk], float).reshape(len(chunk), n)
            judgements |= zip(chunk, _judge_differences(x, by, exact), strict=True)
    return [judgements[place] for place in range(len(many))]


def _judge_differences(x: np.ndarray, by: float, exact: bool) -> list[Judgement]:
    """The judgements of differences [claims, seeds]."""
    effects, holding = _tested_estimates(x, "difference", exact), (x > by).sum(-1)
    if exact and effects and all(effect.sd == 0 for effect in effects):
        return [_exact_judgement(effect, int(n)) for effect, n in zip(effects, holding, strict=True)]
    if exact and len(x) > 1:
        return [_judge_differences(differences[None], by, exact)[0] for differences in x]
    if x.shape[-1] < 2:
        no = np.zeros(len(x), bool)
        return _judgements(x, effects, "difference", by, no + 1.0, no + 1.0, holding, (no, ~no))
    above, below = paired_tests.p_above(x, by), paired_tests.p_below(x, by)
    is_towards = above < below
    is_confirmed = paired_tests.is_above(np.where(is_towards, 1.0, -1.0)[:, None] * (x - by), 0.0)
    t = np.array([_t(effect, by) for effect in effects])
    plain = 2 * special.stdtr(x.shape[-1] - 1, -np.abs(t))
    p = np.minimum(1.0, 2 * np.minimum(above, below))
    return _judgements(x, effects, "difference", by, p, plain, holding, (is_towards, is_confirmed))


def judge_equivalence(differences: Sequence[float], within: float, exact: bool = False) -> Judgement:
    """Test the claim that the mean difference is within ±`within`: two one-sided tests (TOST, Schuirmann 1987).

    The p-value is the smaller of that of the TOST and that of the two-sided test that the mean is outside.
    """
    x = np.array(differences, float).reshape(1, -1)
    [effect], holding = _tested_estimates(x, "equality", exact), (np.abs(x) < within).sum(-1)
    if exact and effect.sd == 0:
        return _exact_judgement(effect, int(holding[0]), "equality")
    if effect.n < 2:
        largest_p, no = np.ones(1), np.zeros(1, bool)
        return _judgements(x, [effect], "equality", 0.0, largest_p, largest_p, holding, (no, ~no))[0]
    above, below = paired_tests.p_above, paired_tests.p_below
    inside = np.maximum(above(x, -within, "equality"), below(x, within, "equality"))
    outside = np.minimum(1.0, 2 * np.minimum(above(x, within), below(x, -within)))
    is_towards = inside < outside
    if is_towards[0]:
        is_confirmed = paired_tests.is_above(x, -within) & paired_tests.is_below(x, within)
    else:
        is_confirmed = paired_tests.is_above(x, within) | paired_tests.is_below(x, -within)
    ends = [_t(effect, -within), _t(effect, within)]
    tost = float(special.stdtr(effect.n - 1, max(-ends[0], ends[1])))
    plain = np.array([min(tost, 2 * float(special.stdtr(effect.n - 1, min(ends[0], -ends[1]))))])
    p, sides = np.minimum(inside, outside), (is_towards, is_confirmed)
    return _judgements(x, [effect], "equality", 0.0, p, plain, holding, sides)[0]


def _tested_estimates(x: np.ndarray, kind: Kind, exact: bool) -> list[Estimate]:
    """The mean of each row with the interval that is tested."""
    estimates = [estimate(row, exact=exact) for row in x]
    if x.shape[-1] < 2:
        return estimates
    level = LEVEL if kind == "difference" else 2 * LEVEL
    lows, highs = (ends.tolist() for ends in paired_tests.interval(x, level, kind))
    return [dataclasses.replace(effect, low=a, high=b) for effect, a, b in zip(estimates, lows, highs, strict=True)]


def _judgements(
    x: np.ndarray,
    effects: Sequence[Estimate],
    kind: Kind,
    reference: float,
    p: np.ndarray,
    plain: np.ndarray,
    holding: np.ndarray,
    sides: tuple[np.ndarray, np.ndarray],
) -> list[Judgement]:
    """The judgements of differences [claims, seeds] with their qualifications; `plain` is the p-value as it was."""
    is_towards, is_confirmed = sides
    n, distinct, effective = x.shape[-1], paired_tests.distinct_values(x), paired_tests.effective_seeds(x)
    is_skewed = np.abs(paired_tests.skewness(x)) > 2 * _skewness_error(n) if n >= FEWEST_SEEDS else distinct < 0
    is_decidable = effective >= FEWEST_SEEDS
    holds: dict[Qualification, np.ndarray] = {
        "zero variance": (n > 1) & (effective == 1),
        "ties": ~((n > 1) & (effective == 1)) & (distinct < n),
        "too few seeds": effective < FEWEST_SEEDS,
        "few seeds": is_decidable & (effective < ENOUGH_SEEDS),
        "skewed": is_decidable & is_skewed,
        "withheld for skewness": is_decidable & (plain < LEVEL) & (p >= LEVEL),
        "outlier": is_decidable & paired_tests.has_outlier(x),
        "withheld by signs": is_decidable & (p < LEVEL) & ~is_confirmed,
    }
    detectable = [detectable_effect(effect, kind=kind) for effect in effects]
    return [
        Judgement(
            effects[i],
            _t(effects[i], reference),
            float(p[i]),
            _agreeing(x[i], reference),
            int(holding[i]),
            detectable[i],
            is_towards=bool(is_towards[i]),
            kind=kind,
            effective=int(effective[i]),
            distinct=int(distinct[i]),
            is_confirmed=bool(is_confirmed[i]),
            qualifications=tuple(name for name, applies in holds.items() if applies[i]),
        )
        for i in range(len(x))
    ]


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
