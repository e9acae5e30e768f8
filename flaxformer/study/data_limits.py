"""Limits of a study that follow from its evaluation data: what intervals cover, other data, examples in training."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredData, Labels, key_of
from flaxformer.study.divergence import is_test_metric
from flaxformer.system.wording import count_of, first_of

MOST_NAMED = 3
"""Largest number of arms that a sentence names."""


def coverage(study: Declaration, standard_errors: Iterable[float]) -> str:
    """Return a sentence on what the intervals of a study cover, and on the variance due to the evaluation data.

    The latter is the root mean square, over the runs, of the standard error of the metric over the examples.
    """
    if not study.arms or study.exact:
        return ""
    metric = study.metric
    split = "test" if is_test_metric(metric) else "evaluation"
    examples = {declared.examples for declared in study.evaluation_data.values()}
    number = f" {examples.pop():,}" if len(examples) == 1 and split == "evaluation" else ""
    text = f"Intervals cover the seeds; the{number} {split} examples are the same for all of them."
    errors = list(filter(math.isfinite, standard_errors))
    if not errors:
        return text
    error = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return (
        f"{text} With other examples, the {metric.replace('_', ' ')} of a run would vary too, with a standard error of "
        f"{error:.2g}; most of it is common to all arms, and cancels in a difference."
    )


def data_limits(study: Declaration) -> list[str]:
    """Return the limits of a declared study that follow from its evaluation data."""
    labels = {arm.arm: arm.labels for arm in study.arms}
    claims = [(claim.text, [arm for _, arm in claim.terms]) for claim in study.claims]
    return limits_of(study.evaluation_data, labels, [axis.name for axis in study.axes], claims)


def limits_of(
    data: Mapping[str, DeclaredData],
    labels: Mapping[str, Labels],
    axes: Sequence[str],
    claims: Sequence[tuple[str, Sequence[Labels]]],
) -> list[str]:
    """Return the axes along which evaluation data differ, the claims that compare such arms, and examples in training.

    Args:
      data: evaluation data by arm.
      labels: labels of each arm.
      axes: names of the axes.
      claims: text of each claim, with the labels that it compares.
    """
    if len({declared.digest for declared in data.values()}) < 2:
        return [*_overlaps(data)]
    digests = {key_of(labels[arm]): declared.digest for arm, declared in data.items() if arm in labels}
    described = [labels[arm] for arm in data if arm in labels]
    names = [axis for axis in axes if _changes_data(axis, described, digests)]
    where = f"along {' and '.join(names)}" if names else "between arms"
    limits = [
        f"The evaluation data differ {where}: a difference between these arms is also one between sets of data, and "
        "their intervals do not cover it."
    ]
    for text, compared in claims:
        compared_arms = [arm for arm in compared if QUANTITY not in arm]
        if len({digests.get(key_of(arm)) for arm in compared_arms}) > 1:
            arms = " and ".join(", ".join(f"{name} {label}" for name, label in arm.items()) for arm in compared_arms)
            limits.append(f"'{text}' compares arms that are evaluated on different data: {arms}.")
    return [*limits, *_overlaps(data)]


def _changes_data(axis: str, arms: Iterable[Labels], digests: Mapping[str, str]) -> bool:
    """True if two arms that differ along this axis only have different evaluation data."""
    groups: dict[str, set[str]] = {}
    for arm in arms:
        context = {name: label for name, label in arm.items() if name != axis}
        groups.setdefault(key_of(context), set()).add(digests[key_of(arm)])
    return any(len(group) > 1 for group in groups.values())


def _overlaps(data: Mapping[str, DeclaredData]) -> Iterator[str]:
    """Yield a sentence per set of evaluation data of which examples also occur in training."""
    overlaps: dict[tuple[int, int, int | None], list[str]] = {}
    for arm, declared in data.items():
        if declared.in_training:
            overlaps.setdefault((declared.in_training, declared.examples, declared.compared), []).append(arm)
    for (shared, examples, compared), arms in overlaps.items():
        named = first_of([f"'{arm}'" for arm in arms], MOST_NAMED)
        where = "" if len(arms) == len(data) else f" (in {named})"
        among = "" if compared is None else f", among {compared:,} that were drawn"
        yield (
            f"{shared:,} of {count_of(examples, 'evaluation example')} ({shared / examples:.1%}) also occur in the "
            f"training data{among}{where}: part of the score can come from memorised examples."
        )
