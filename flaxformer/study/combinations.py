"""Combinations of the levels of several axes."""

import itertools
import math
from collections.abc import Callable, Sequence

from flaxformer.store.declaration import Labels
from flaxformer.study.axis import Axis
from flaxformer.system.errors import UserError, shorten
from flaxformer.training.run import Run

MOST_TRIALS = 100_000
"""Largest number of trials of a study: of its arms times its seeds."""
Combination = Callable[[Sequence[Axis], Run], list[Labels]]
"""Function of the axes and the baseline that returns the labels of each arm."""


def _product(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    names = [axis.name for axis in axes]
    return [dict(zip(names, labels, strict=True)) for labels in itertools.product(*(axis.levels for axis in axes))]


def _zip(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    sizes = {axis.name: len(axis.levels) for axis in axes}
    if len(set(sizes.values())) > 1:
        raise UserError(f"combine is 'zip' and the axes have {sizes} levels; expected as many on each")
    names = [axis.name for axis in axes]
    return [dict(zip(names, labels, strict=True)) for labels in zip(*(axis.levels for axis in axes), strict=True)]


def _one_factor(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    base = {axis.name: axis.baseline_label(baseline) or "baseline" for axis in axes}
    changed = [base | {axis.name: label} for axis in axes for label in axis.levels]
    return [base, *(labels for labels in changed if labels != base)]


COMBINATIONS: dict[str, Combination] = {"product": _product, "zip": _zip, "one-factor": _one_factor}
"""Combinations by the name that `Study.combine` has."""


COUNTS: dict[str, Callable[[Sequence[int]], int]] = {
    "product": math.prod,
    "zip": lambda levels: min(levels, default=1),
    "one-factor": lambda levels: 1 + sum(levels),
}
"""Numbers of arms of each combination, at most, from the numbers of levels."""


def check_number_of_trials(combine: str, axes: Sequence[Axis], seeds: int) -> None:
    """Check the number of trials before any arm is made, since arms of a large product would fill the memory.

    Raises:
      UserError: it is above `MOST_TRIALS`; the message has the numbers of levels and seeds.
    """
    levels = {axis.name: len(axis.levels) for axis in axes}
    trials = COUNTS[combine](list(levels.values())) * seeds
    if trials > MOST_TRIALS:
        numbers = shorten(", ".join(f"{name} {n:,}" for name, n in levels.items()))
        raise UserError(
            f"Study: combine is '{combine}', axes have {numbers or 'no'} levels and seeds are {seeds:,}, which are "
            f"{trials:,} trials; expected at most {MOST_TRIALS:,}: fewer levels or seeds, combine='one-factor', or "
            "points of `sample_points`"
        )
