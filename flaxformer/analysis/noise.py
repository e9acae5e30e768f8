"""Noise floor of a metric: its spread over seeds by source, that of a small change, and effects that seeds can show."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import special

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.statistics import paired_tests
from flaxformer.statistics.estimates import LEVEL
from flaxformer.statistics.paired_tests import Kind
from flaxformer.store.declaration import Declaration, Labels, key_of
from flaxformer.system.digests import DamagedError, JsonObject, read_document, write_document
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import FiniteNumber, Int64, Record, convert, plain

SOURCES = {"init": "initialisation", "data": "data order", "dropout": "dropout"}
"""Fields of `Seeds`, and their names in reports."""
TOGETHER = "together"
"""Label of the arm in which all sources vary."""
NAME = "noise.json"
CHANGED = "small change"
"""Label of the arm with the small change, which is paired with the one in which all sources vary."""
SEEDS = (4, 5, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of seeds of the table."""
MOST_SEEDS = 10_000
POWER = "80 %"


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
    by_labels = {key_of(arm.labels): arm.arm for arm in study.arms}
    varied = [_varied_sources(study.recipes[by_labels[key_of(arm.labels)]].run) for arm in arms]
    if all(len(sources) == len(SOURCES) for sources in varied):
        return []
    together = [arm.estimate for arm, sources in zip(arms, varied, strict=True) if len(sources) == len(SOURCES)]
    total = together[0].sd ** 2 if len(together) == 1 and together[0].n > 1 else math.nan
    return [_variance(arm, sources, total) for arm, sources in zip(arms, varied, strict=True)]


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


class Noise(Record, frozen=True, kw_only=True):
    """The noise floor, as a folder keeps it for later plans."""

    metric: str
    unit: str
    n: Int64
    """Number of seeds."""
    sd: FiniteNumber
    """Standard deviation over seeds of the metric of one recipe."""
    paired_sd: FiniteNumber
    """Standard deviation over seeds of the difference that a small change makes."""
    change: str
    """The small change."""
    evaluation_se: FiniteNumber | None = None
    """Mean standard error of the metric over the evaluation examples; None where it is not computed."""
    seconds: FiniteNumber
    """Mean seconds of a run."""
    run: JsonObject | None = None
    """Config of the recipe, without its seeds; None in files of earlier versions."""

    def finds(self, seeds: int, family: int = 1, sd: float | None = None, kind: Kind = "difference") -> float:
        """Return the effect, or margin, that so many seeds find with a probability of 80 %; NaN below 4 seeds.

        Args:
          seeds: their number.
          family: number of claims that are tested together.
          sd: standard deviation of what is tested; that of a small change by default.
          kind: of the test.
        """
        if seeds < SEEDS[0]:
            return math.nan
        return paired_tests.detectable_in_sd(seeds, LEVEL / family, kind) * (self.paired_sd if sd is None else sd)

    def seeds_for(
        self, effect: float, family: int = 1, sd: float | None = None, kind: Kind = "difference"
    ) -> int | None:
        """Return the smallest number of seeds that find an effect with a probability of 80 %; None for too many.

        Args:
          effect: its size, or the margin of an equality.
          family: number of claims that are tested together.
          sd: standard deviation of what is tested; that of a small change by default.
          kind: of the test.
        """
        low, high = SEEDS[0] - 1, SEEDS[0]
        while self.finds(high, family, sd, kind) > effect:
            low, high = high, 2 * high
            if high > MOST_SEEDS:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.finds(middle, family, sd, kind) <= effect else (middle, high)
        return high


def noise_of(analysis: Analysis, change: str) -> Noise:
    """Return the noise floor from the results of its study.

    Raises:
      UserError: fewer than two seeds have both runs that are paired.
    """
    together, changed = _scores(analysis, TOGETHER), _scores(analysis, CHANGED)
    pairs = [(a, b) for a, b in zip(together, changed, strict=True) if a is not None and b is not None]
    if len(pairs) < 2:
        raise UserError(f"only {len(pairs)} seeds have a result with and without the change; expected at least 2")
    x = np.array(pairs)
    recipe = next(recipe for arm, recipe in analysis.study.recipes.items() if arm.endswith(f"={TOGETHER}"))
    errors = analysis.results.numbers(f"{analysis.study.metric}_se").drop_nulls()
    seconds = analysis.results.numbers("seconds").drop_nulls()
    return Noise(
        metric=analysis.study.metric,
        unit=analysis.study.unit,
        n=len(pairs),
        sd=float(x[:, 0].std(ddof=1)),
        paired_sd=float((x[:, 1] - x[:, 0]).std(ddof=1)),
        change=change,
        evaluation_se=float(errors.to_numpy().mean()) if len(errors) else None,
        seconds=float(seconds.to_numpy().mean()) if len(seconds) else 0.0,
        run=config_of(recipe.run),
    )


def config_of(run: JsonObject) -> JsonObject:
    """Return the canonical config of a run without its seeds, which a study of the noise floor varies."""
    return {name: value for name, value in run.items() if name not in ("seed", "seeds")}


def _scores(analysis: Analysis, label: str) -> Sequence[float | None]:
    return next(arm.scores for arm in analysis.arms if label in arm.labels.values())


def sources(analysis: Analysis) -> list[SeedVariance]:
    """Return the standard deviation of the metric by source of randomness; see `variance`."""
    arms = [arm for arm in analysis.arms if CHANGED not in arm.labels.values()]
    return seed_variances(analysis.study, arms)


def write(folder: Path, noise: Noise) -> None:
    """Keep the noise floor in its folder."""
    write_document(folder / NAME, plain(noise))


def folder_of(study: Path) -> Path:
    """Return the folder of the noise floor that belongs to a study's folder."""
    return study.with_name(f"{study.name}-noise")


def read(folder: Path) -> Noise | None:
    """Return the noise floor of a folder; None if it has none, or a damaged one."""
    try:
        return convert(read_document(folder / NAME), Noise)
    except (OSError, DamagedError):
        return None


def table(noise: Noise) -> Iterator[tuple[int, float]]:
    """Yield numbers of seeds, with the effect that they find with a probability of 80 %."""
    return ((seeds, noise.finds(seeds)) for seeds in SEEDS)


def interval(noise: Noise) -> tuple[float, float]:
    """Return the 95 % interval of the paired standard deviation, for normal differences."""
    return sd_interval(noise.paired_sd, noise.n)
