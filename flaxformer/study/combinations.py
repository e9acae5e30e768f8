"""Combinations of the levels of several axes."""

import itertools
from collections.abc import Callable, Sequence

from flaxformer.errors import UserError
from flaxformer.study.axis import Axis
from flaxformer.study.claim import Labels
from flaxformer.training.run import Run

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
