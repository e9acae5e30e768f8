"""Summary of one arm over its seeds."""

import dataclasses
import functools
from collections.abc import Sequence

from flaxformer.store.rows import Row
from flaxformer.study.claim import Labels
from flaxformer.study.divergence import curve_of, score
from flaxformer.study.statistics import Estimate, estimate, proportion
from flaxformer.wording import counted

Curve = tuple[list[int], list[Estimate]]
"""Steps, and the estimate over seeds at each."""
MOST_LISTED = 6
"""Largest number of arms of which the rate of divergence is given."""


@dataclasses.dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds: scores in the order of `seeds`, None where a run is missing, failed or stopped early."""

    labels: Labels
    scores: list[float | None]
    rows: list[Row | None]
    diverged: int

    @functools.cached_property
    def estimate(self) -> Estimate:
        """Mean and interval over the seeds with a score."""
        return estimate([score for score in self.scores if score is not None])

    @property
    def stopped_at(self) -> int | None:
        """Step at which a halving stopped the arm; None if it was not stopped."""
        return next((row["stopped_at"] for row in self.rows if row and row["status"] == "stopped"), None)

    def curve(self, metric: str) -> Curve | None:
        """Learning curve over the runs that ended, by the rule of divergence; None without any."""
        rows = [row for row in self.rows if row and row.status in ("done", "diverged") and metric in row.curves]
        if not rows:
            return None
        columns = zip(*(curve_of(row, metric) for row in rows), strict=True)
        return rows[0]["evaluated_at"], [estimate(column) for column in columns]

    def stopped_estimate(self, metric: str) -> Estimate:
        """Mean and interval of the metric at the step at which a halving stopped the arm."""
        return estimate([score(row, metric) for row in self.rows if row and row["status"] == "stopped"])


def divergence_rates(arms: Sequence[ArmSummary]) -> list[str]:
    """Return a sentence on the rate of divergence, with its interval, for each arm with a diverged run."""
    found = []
    for arm in arms:
        if arm.diverged:
            n = sum(row is not None for row in arm.rows)
            low, high = proportion(arm.diverged, n)
            name = ", ".join(f"{axis} {label}" for axis, label in arm.labels.items()) or "the baseline"
            rate = f"rate {arm.diverged / n:.0%}, 95 % interval {low:.0%} to {high:.0%}"
            found.append(f"{arm.diverged} of {counted(n, 'run')} of {name} diverged ({rate}).")
    more = len(found) - MOST_LISTED
    return found[:MOST_LISTED] + ([f"Of {counted(more, 'other arm')}, runs diverged too."] if more > 0 else [])
