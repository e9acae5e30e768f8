"""Combinations of the levels of several axes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from flaxformer.core.paths import replace_at
from flaxformer.store.declaration import Combine, Labels
from flaxformer.study.axis import Axis
from flaxformer.system.errors import UserError, shorten
from flaxformer.system.wording import join_words
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


def _leave_one_out(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    """The baseline, each change of it alone, all changes, and all but each; of one or two axes, some are the same."""
    for first, second in itertools.combinations(axes, 2):
        if shared := [path for path in first.paths if path in second.paths]:
            raise UserError(
                f"{_quoted([first.name, second.name])} cannot be combined: both change {shared[0]}; expected paths of "
                "their own for each, such as two fields of one component"
            )
    plain, whole = {}, {}
    for axis in axes:
        label = axis.baseline_label(baseline)
        changed = [level for level in axis.levels if level != label]
        if label is None or len(changed) != 1:
            raise UserError(
                f"combine is 'leave-one-out' and axis '{axis.name}' has the levels {list(axis.levels)}; expected two, "
                "of which one is the baseline"
            )
        plain[axis.name], whole[axis.name] = label, changed[0]
    alone = [plain | {name: whole[name]} for name in plain]
    all_but_one = [whole | {name: plain[name]} for name in plain]
    arms = {tuple(labels.items()): labels for labels in (plain, *alone, whole, *all_but_one)}
    changes = {axis.name: axis.changes(whole[axis.name]) for axis in axes}
    for labels in arms.values():
        _check_features({name: changes[name] for name in labels if labels[name] == whole[name]}, baseline)
    return list(arms.values())


def _check_features(features: Mapping[str, Mapping[str, object]], baseline: Run) -> None:
    """Raise UserError if changes do not make a valid run together; the message names the fewest that do not.

    Args:
      features: value at each path, by the name of the feature.
      baseline: the run that they change.
    """

    def error(names: Sequence[str]) -> UserError | None:
        try:
            replace_at(baseline, {path: value for name in names for path, value in features[name].items()})
        except UserError as problem:
            return problem
        return None

    names = list(features)
    if error(names) is None:
        return
    for name in features:
        fewer = [other for other in names if other != name]
        names = names if error(fewer) is None else fewer
    what = "cannot be combined" if len(names) > 1 else "does not fit the baseline"
    raise UserError(f"{_quoted(names)} {what}: {error(names)}")


def _quoted(names: Sequence[str]) -> str:
    texts = [f"'{name}'" for name in names]
    return f"{'features' if len(names) > 1 else 'feature'} {join_words(texts)}"


COMBINATIONS: dict[Combine, Combination] = {
    "product": _product,
    "zip": _zip,
    "one-factor": _one_factor,
    "leave-one-out": _leave_one_out,
}
"""Combinations by the name that `Study.combine` has."""


COUNTS: dict[Combine, Callable[[Sequence[int]], int]] = {
    "product": math.prod,
    "zip": lambda levels: min(levels, default=1),
    "one-factor": lambda levels: 1 + sum(levels),
    "leave-one-out": lambda levels: min(2 ** len(levels), 2 + 2 * len(levels)),
}
"""Numbers of arms of each combination, at most, from the numbers of levels."""


def check_number_of_trials(combine: Combine, axes: Sequence[Axis], seeds: int) -> None:
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
