"""Exploratory contrasts: every level of an axis against the reference level, in every context, without a claim."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.judging import paired_differences
from flaxformer.statistics.corrections import benjamini_hochberg
from flaxformer.statistics.judgement import Judgement, judge_differences, with_verdicts
from flaxformer.store.declaration import Declaration, DeclaredAxis, Labels, Terms, key_of

WEAK = 0.10
"""False discovery rate of the exploratory findings: without any effect, at most so many reports have one."""


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Contrast of a level with the reference level of its axis, for the labels `context` of the other axes."""

    axis: str
    label: str
    reference: str
    context: Labels
    judgement: Judgement
    is_opposite: bool
    """True if its sign is opposite to that of the same step at the baseline, which is significant."""
    p_discovery: float = 1.0
    """p-value corrected for all explorations by the method of Benjamini and Hochberg (1995)."""

    @property
    def is_significant(self) -> bool:
        """True if its p-value, corrected for all explorations by Holm, is below the level."""
        return self.judgement.verdict != "inconclusive"

    @property
    def is_weak_signal(self) -> bool:
        """True if it is not significant, and its false discovery rate is below `WEAK`."""
        return not self.is_significant and self.judgement.can_decide and self.p_discovery < WEAK

    @property
    def finding(self) -> str:
        """Kind of finding in words; empty if it is not a finding."""
        kind = "significant" if self.is_significant else "weak signal" if self.is_weak_signal else ""
        return f"{kind}, opposite" if kind and self.is_opposite else kind


def explore(study: Declaration, arms: dict[str, ArmSummary], swept: Collection[str]) -> list[Exploration]:
    """Compare every level with the reference level of its axis, in every context that was run.

    Contrasts that a claim is about are left out, and those along the swept axes, which the sweeps describe.
    """
    declared = {_pair(claim.terms[i : i + 2]) for claim in study.claims for i in range(0, len(claim.terms), 2)}
    at_baseline: dict[tuple[str, str], list[float]] = {}
    steps: list[tuple[str, str, str, Labels]] = []
    differences: list[list[float]] = []
    for axis in study.axes:
        name, reference = axis.name, axis.baseline or axis.labels[0]
        other_axes = [other for other in study.axes if other is not axis]
        if all(other.baseline in other.labels for other in other_axes):
            context = {other.name: str(other.baseline) for other in other_axes}
            for label in axis.labels:
                if label != reference:
                    at_baseline[name, label] = paired_differences(_terms(context, name, label, reference), arms)
        for label, context in _contexts(axis, other_axes, arms.values()) if name not in swept else ():
            terms = _terms(context, name, label, reference)
            per_seed = paired_differences(terms, arms) if label != reference else []
            if len(per_seed) > 1 and _pair(terms) not in declared:
                steps.append((name, label, reference, context))
                differences.append(per_seed)
    judged = with_verdicts(judge_differences(differences))
    discovery = benjamini_hochberg([judgement.p if judgement.can_decide else 1.0 for judgement in judged])
    known = dict(zip(at_baseline, with_verdicts(judge_differences(list(at_baseline.values()))), strict=True))
    directions = {
        step: judgement.effect.mean for step, judgement in known.items() if judgement.verdict != "inconclusive"
    }
    return [
        Exploration(*step, judgement, judgement.effect.mean * directions.get(step[:2], 0.0) < 0, p)
        for step, judgement, p in zip(steps, judged, discovery, strict=True)
    ]


def _terms(context: Labels, axis: str, label: str, reference: str) -> Terms:
    return [(1.0, {**context, axis: label}), (-1.0, {**context, axis: reference})]


def _contexts(
    axis: DeclaredAxis, other_axes: Sequence[DeclaredAxis], arms: Collection[ArmSummary]
) -> Iterator[tuple[str, Labels]]:
    """Yield the label on an axis and the labels on the others of each arm, in the order of the labels of the axes."""
    ranks = [(any_axis.name, {label: i for i, label in enumerate(any_axis.labels)}) for any_axis in (axis, *other_axes)]
    combinations = [arm.labels for arm in arms if all(arm.labels.get(name) in rank for name, rank in ranks)]
    for labels in sorted(combinations, key=lambda labels: [rank[labels[name]] for name, rank in ranks]):
        yield labels[axis.name], {other.name: labels[other.name] for other in other_axes}


def _pair(terms: Terms) -> frozenset[str]:
    return frozenset(key_of(labels) for _, labels in terms)
