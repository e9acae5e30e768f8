"""Columns of an estimate: its mean, the ends of its interval and its standard deviation, in tables and in files."""

import math
import statistics
from collections.abc import Callable, Sequence

from flaxformer.report import numbers, phrasing
from flaxformer.report.table import EVERYWHERE, Item, TableColumn
from flaxformer.statistics.estimates import Estimate


def estimate_columns(
    title: str,
    name: str,
    get: Callable[[Item], Estimate],
    scores: Sequence[Estimate] = (),
    has_sd: bool = True,
) -> list[TableColumn[Item]]:
    """Return the columns of the mean, the interval and the standard deviation.

    Args:
      title, name: names of the mean in the report and in files.
      get: function that returns the estimate of an item.
      scores: estimates that share the digits of the typical interval; without any, each has its own.
      has_sd: False if only files have the standard deviation.
    """
    (mean, *ends, sd), digits = estimate_values(name, get).items(), typical_uncertainty(scores)
    return [
        TableColumn(title, lambda item: estimate_texts(get(item), *digits)[0], dict([mean])),
        TableColumn("95 % interval", lambda item: estimate_texts(get(item), *digits)[1], dict(ends)),
        TableColumn("sd", lambda item: estimate_texts(get(item), *digits)[2], dict([sd]), EVERYWHERE if has_sd else ()),
    ]


def estimate_values(name: str, get: Callable[[Item], Estimate]) -> dict[str, Callable[[Item], object]]:
    """Return what files have of an estimate: the mean, the ends of the interval, and the standard deviation."""
    return {
        name: lambda item: get(item).mean,
        f"{name}_low": lambda item: get(item).low,
        f"{name}_high": lambda item: get(item).high,
        f"{name}_sd": lambda item: get(item).sd,
    }


def typical_uncertainty(scores: Sequence[Estimate]) -> tuple[float, float]:
    """Medians of the half-widths and of the standard deviations; NaN where the means differ by orders of magnitude."""
    varying = [score for score in scores if score.sd > 0]
    sizes = [abs(score.mean) for score in scores if score.n and score.mean]
    if not varying or max(sizes) >= 1e3 * min(sizes):
        return math.nan, math.nan
    return statistics.median(map(phrasing.half_width, varying)), statistics.median(score.sd for score in varying)


def estimate_texts(score: Estimate, half: float, sd: float) -> list[str]:
    """Mean, interval and standard deviation, to the digits of these uncertainties; NaN for the estimate's own."""
    half, sd = (phrasing.half_width(score), score.sd) if math.isnan(half) else (half, sd)
    mean, low, high = numbers.numbers((score.mean, score.low, score.high), half)
    return [mean, interval_text(low, high), numbers.number(score.sd, sd)]


def interval_text(low: str, high: str) -> str:
    """An interval by its ends, or "–"."""
    return "–" if low == "–" else f"{low} to {high}"
