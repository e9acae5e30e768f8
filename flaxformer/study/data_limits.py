"""Limits of a study that follow from its evaluation data: what intervals cover, other data, examples in training."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredData, Labels
from flaxformer.study.divergence import is_test_metric
from flaxformer.system.wording import count_of

MOST_NAMED = 3
"""Largest number of arms that a sentence names."""


def coverage(study: Declaration, standard_errors: Iterable[float]) -> str:
    """Return a sentence on what the intervals of a study cover, and on the variance due to the evaluation data.

    The latter is the root mean square, over the runs, of the standard error of the metric over the examples.
    """
    if not study.arms or study.exact:
        return ""
    metric = study.metric
    part = "test" if is_test_metric(metric) else "evaluation"
    examples = {own.examples for own in study.evaluation_data.values()}
    number = f" {examples.pop():,}" if len(examples) == 1 and part == "evaluation" else ""
    text = f"Intervals cover the seeds; the{number} {part} examples are the same for all of them."
    errors = list(filter(math.isfinite, standard_errors))
    if not errors:
        return text
    error = math.sqrt(sum(own**2 for own in errors) / len(errors))
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
    """Return the limits that follow from evaluation data.

    Args:
      data: evaluation data by arm.
      labels: labels of each arm.
      axes: names of the axes.
      claims: text of each claim, with the labels that it compares.
    """
    return [*_differences(data, labels, axes, claims), *_overlaps(data)]


def _differences(
    data: Mapping[str, DeclaredData],
    labels: Mapping[str, Labels],
    axes: Sequence[str],
    claims: Sequence[tuple[str, Sequence[Labels]]],
) -> Iterator[str]:
    """Yield the axes along which the evaluation data differ, and the claims that compare arms with different data."""
    if len({own.digest for own in data.values()}) < 2:
        return
    digests = {_key(labels[arm]): own.digest for arm, own in data.items() if arm in labels}
    described = [labels[arm] for arm in data if arm in labels]
    names = [axis for axis in axes if _changes_data(axis, described, digests)]
    where = f"along {' and '.join(names)}" if names else "between arms"
    yield (
        f"The evaluation data differ {where}: a difference between these arms is also one between sets of data, and "
        "their intervals do not cover it."
    )
    for text, compared in claims:
        own = [one for one in compared if QUANTITY not in one]
        if len({digests.get(_key(one)) for one in own}) > 1:
            arms = " and ".join(", ".join(f"{name} {label}" for name, label in one.items()) for one in own)
            yield f"'{text}' compares arms that are evaluated on different data: {arms}."


def _key(labels: Labels) -> str:
    return json.dumps(labels, sort_keys=True)


def _changes_data(axis: str, arms: Iterable[Labels], digests: Mapping[str, str]) -> bool:
    """True if two arms that differ along this axis only have different evaluation data."""
    groups: dict[str, set[str]] = {}
    for own in arms:
        others = {name: label for name, label in own.items() if name != axis}
        groups.setdefault(_key(others), set()).add(digests[_key(own)])
    return any(len(group) > 1 for group in groups.values())


def _overlaps(data: Mapping[str, DeclaredData]) -> Iterator[str]:
    """Yield a sentence per set of evaluation data of which examples also occur in training."""
    found: dict[tuple[int, int, int | None], list[str]] = {}
    for arm, own in data.items():
        if own.in_training:
            found.setdefault((own.in_training, own.examples, own.compared), []).append(arm)
    for (shared, examples, compared), arms in found.items():
        named = ", ".join(f"'{arm}'" for arm in arms[:MOST_NAMED])
        more = f" and {len(arms) - MOST_NAMED} more" if len(arms) > MOST_NAMED else ""
        where = "" if len(arms) == len(data) else f" (in {named}{more})"
        among = "" if compared is None else f", among {compared:,} that were drawn"
        yield (
            f"{shared:,} of {count_of(examples, 'evaluation example')} ({shared / examples:.1%}) also occur in the "
            f"training data{among}{where}: part of the score can come from memorised examples."
        )
