"""Decomposition of the variance between seeds: initialisation, data order and dropout, each varied alone."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from scipy import special

from flaxformer.analysis.arms import ArmSummary
from flaxformer.statistics.judgement import LEVEL
from flaxformer.store.declaration import Declaration, Labels
from flaxformer.study.declare import Study
from flaxformer.study.search import Points
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.training.run import Run

SOURCES = {"init": "initialisation", "data": "data order", "dropout": "dropout"}
"""Fields of `Seeds`, and their names in reports."""
AXIS, TOGETHER = "varied", "together"


def variance_of_seeds(
    run: Run,
    seeds: int | Sequence[int] = 8,
    *,
    sources: Sequence[str] | None = None,
    name: str = "variance_of_seeds",
    metric: str = "validation_loss",
) -> Study:
    """Return the study of how much of the variance between seeds is due to each source of randomness.

    One arm varies initialisation, data order and dropout together, as the seeds of an ordinary study do. Every other
    arm varies one source and keeps the others at `run.seed`. The report has the standard deviation of the metric in
    each arm: sd(L | others fixed) over the seeds, in the unit of the metric.

    >>> study = variance_of_seeds(run, seeds=8)

    Args:
      run: the run; its seed is that of the sources that are fixed.
      seeds: the seeds, or their number.
      sources: fields of `Seeds` to vary alone, of "init", "data" and "dropout"; by default all three, without dropout
        for a model that has none.
      name: name of the study.
      metric: metric of the study.

    Raises:
      UserError: an unknown source, a run with `seeds` of its own, or fewer than two seeds.
    """
    chosen = _default_sources(run) if sources is None else tuple(sources)
    for one in chosen:
        if one not in SOURCES:
            raise UserError(f"sources has '{one}'{did_you_mean(one, list(SOURCES))}")
    given = {own: value for own in SOURCES if (value := getattr(run.seeds, own)) is not None}
    if given:
        raise UserError(f"run.seeds are {given}; expected None, since the study sets them")
    seeds = range(seeds) if isinstance(seeds, int) else tuple(seeds)
    if len(seeds) < 2:
        raise UserError(f"seeds are {list(seeds)}; expected at least 2, to estimate a standard deviation")
    fixed: Mapping[str, Mapping[str, object]] = {
        SOURCES[one]: {f"seeds.{own}": None if own == one else run.seed for own in SOURCES} for one in chosen
    }
    others = "the others are fixed at one draw each, so that a share holds for that draw"
    return Study(
        name=name,
        question="How much of the variance between seeds is due to initialisation, data order and dropout?",
        baseline=run,
        axes=[Points(AXIS, {TOGETHER: {f"seeds.{own}": None for own in SOURCES}, **fixed})],
        seeds=seeds,
        metric=metric,
        caveats=[f"Where one source varies, {others}; shares need not add up to 100 %, since sources interact."],
    )


def _default_sources(run: Run) -> tuple[str, ...]:
    stacks = [stack for stack in (run.model, run.model.encoder) if stack is not None]
    has_dropout = any(stack.dropout is not None for stack in stacks)
    return tuple(own for own in SOURCES if own != "dropout" or has_dropout)


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
    varied = [_varied(study.recipes[by_labels[_key(arm.labels)]].run) for arm in arms]
    if all(len(own) == len(SOURCES) for own in varied):
        return []
    together = [arm.estimate for arm, own in zip(arms, varied, strict=True) if len(own) == len(SOURCES)]
    total = together[0].sd ** 2 if len(together) == 1 and together[0].n > 1 else math.nan
    return [_variance(arm, own, total) for arm, own in zip(arms, varied, strict=True)]


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _varied(run: JsonObject) -> tuple[str, ...]:
    """Return the names of the sources that follow the seed, from the recipe of an arm."""
    fixed = run.get("seeds", {})
    return tuple(name for own, name in SOURCES.items() if fixed.get(own) is None)


def _variance(arm: ArmSummary, sources: tuple[str, ...], total: float) -> SeedVariance:
    own = arm.estimate
    low, high = sd_interval(own.sd, own.n)
    share = own.sd**2 / total if total else math.nan
    return SeedVariance(arm.labels, sources, own.sd, low, high, share, own.n)


def sd_interval(sd: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the two-sided (1 − level) interval of a standard deviation of n normal numbers; NaN for n below 2."""
    if n < 2:
        return math.nan, math.nan
    low, high = (sd * math.sqrt((n - 1) / special.chdtri(n - 1, tail)) for tail in (level / 2, 1 - level / 2))
    return low, high
