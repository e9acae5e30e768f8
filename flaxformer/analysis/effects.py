"""Effects of single changes of a recipe: each alone, within the whole of all changes, and their interaction.

A change is another level of an axis than the baseline's. With the metric L of an arm, of which lower is better, its
effect alone is a = L(baseline) − L(change), and within the whole w = L(all but the change) − L(all): positive where the
change is good. The interaction is w − a. Each is a mean over paired seeds, with the interval that a claim would have.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.judging import paired_differences
from flaxformer.analysis.speedup import SpeedUp, SpeedUps, compare_arms, metric_and_goal, speed_up_of_a_step
from flaxformer.statistics.estimates import Estimate
from flaxformer.statistics.judgement import judge_difference
from flaxformer.store.declaration import WITH, Declaration, Labels, Terms, key_of
from flaxformer.study.halving import direction_of

Contrasts = tuple[Terms, Terms, Terms]
"""Within the whole, alone, and the interaction of the two."""


@dataclasses.dataclass(frozen=True)
class Effect:
    """A change in one context: what it does to the metric and to the cost of training."""

    metric: Estimate
    """Positive where the change is good; for a metric without a direction, where it raises it. Empty without runs."""
    terms: Terms
    """Weighted arms whose sum is the effect: two of them, unless it is a sum or an interaction."""
    speed_ups: SpeedUps | None = None
    step: SpeedUp | None = None
    """Seconds per step without the change, divided by those with it."""

    @property
    def speeds(self) -> dict[str, SpeedUp | None]:
        """Speed-ups by name: in compute and time, to the score with the change and to the other's; and of a step."""
        speeds: dict[str, SpeedUp | None] = {"step": self.step}
        if (pair := self.speed_ups) is not None:
            speeds |= {"compute": pair.compute, "compute_to_other": pair.compute_to_baseline}
            speeds |= {"time": pair.time, "time_to_other": pair.time_to_baseline}
        return speeds


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the baseline, or all of them, with its effects."""

    name: str
    within: Effect
    """Effect within the whole: of all changes over all but this one."""
    alone: Effect
    interaction: Effect
    """Effect within the whole minus effect alone."""
    is_single: bool = True
    """False for all changes together, and for sums over them."""


def changes(study: Declaration, arms: Sequence[ArmSummary]) -> list[Change]:
    """Return every change with its effects, the largest first; then all together, their sum, and what exceeds it.

    Studies whose axes are varied one at a time have some: those with combine="leave-one-out", and, without a whole,
    "one-factor".
    """
    if study.combine not in ("leave-one-out", "one-factor") or len(study.axes) < 2:
        return []
    by_labels = {key_of(arm.labels): arm for arm in arms}
    contrasts = _contrasts(study)
    single = [_change(study, by_labels, name, parts) for name, parts in contrasts.items()]
    totals = _totals(study, list(contrasts.values())) if study.combine == "leave-one-out" else {}
    return [
        *sorted(single, key=_size),
        *(_change(study, by_labels, name, parts, False) for name, parts in totals.items()),
    ]


def _contrasts(study: Declaration) -> dict[str, Contrasts]:
    """Return the contrasts of every change by its name: within the whole, alone, and of the two; () without a whole."""
    plain, whole = _plain_and_whole(study)
    contrasts: dict[str, Contrasts] = {}
    for axis in study.axes:
        for label in axis.labels:
            if label != axis.baseline:
                alone = _terms(plain | {axis.name: label}, plain)
                name = axis.name if label == WITH else f"{axis.name} {label}"
                contrasts[name] = ((), alone, ())
                if study.combine == "leave-one-out":
                    within = _terms(whole, whole | {axis.name: plain[axis.name]})
                    contrasts[name] = (within, alone, _minus(within, alone))
    return contrasts


def _totals(study: Declaration, single: Sequence[Contrasts]) -> dict[str, Contrasts]:
    """Return the contrasts of all changes together, of the sums of single effects, and of what exceeds each sum."""
    plain, whole = _plain_and_whole(study)
    total = _terms(whole, plain)
    within, alone, interaction = ([term for terms in part for term in terms] for part in zip(*single, strict=True))
    return {
        "all together": (total, total, ()),
        "sum of the effects": (within, alone, interaction),
        "all beyond the sum": (_minus(total, within), _minus(total, alone), ()),
    }


def _plain_and_whole(study: Declaration) -> tuple[Labels, Labels]:
    """The labels of the baseline, and those of the arm with the last change on every axis."""
    plain = {axis.name: str(axis.baseline) for axis in study.axes}
    changed = {axis.name: label for axis in study.axes for label in axis.labels if label != axis.baseline}
    return plain, plain | changed


def _change(
    study: Declaration, arms: Mapping[str, ArmSummary], name: str, contrasts: Contrasts, is_single: bool = True
) -> Change:
    within, alone, interaction = (_effect(study, arms, terms) for terms in contrasts)
    return Change(name, within, alone, interaction, is_single)


def _effect(study: Declaration, arms: Mapping[str, ArmSummary], contrast: Terms) -> Effect:
    """The effect of a contrast Σ weight · arm, turned so that it is positive where good; of none, an empty one."""
    sign = -1.0 if direction_of(study.metric, study.goal) == "lower" else 1.0
    terms = [(sign * weight, labels) for weight, labels in contrast]
    metric = judge_difference(paired_differences(terms, arms) if terms else []).effect
    compared = [arms[key] for _, labels in terms if (key := key_of(labels)) in arms]
    if len(terms) != 2 or len(compared) != 2:
        return Effect(metric, terms)
    first, second = compared
    return Effect(
        metric,
        terms,
        compare_arms(study, first, second),
        speed_up_of_a_step(first, second, metric_and_goal(study)[0]),
    )


def _size(change: Change) -> tuple[bool, float]:
    """Key that sorts changes by their effects within the whole, or alone without one; those without runs last."""
    metric = (change.within if change.within.metric.n else change.alone).metric
    return metric.n == 0, -metric.mean if metric.n else 0.0


def _terms(first: Labels, second: Labels) -> Terms:
    return [(1.0, first), (-1.0, second)]


def _minus(first: Terms, second: Terms) -> Terms:
    return [*first, *((-weight, labels) for weight, labels in second)]
