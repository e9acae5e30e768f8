"""Scaling laws in words and in the cells of tables."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.joint_fit import JointFit, JointPoint
from flaxformer.analysis.scaling_analysis import Crossing, PredictedEffect, ScalingAnalysis
from flaxformer.analysis.scaling_fit import FARTHEST, HeldOut, ScalingFit
from flaxformer.report import numbers, phrasing
from flaxformer.report.numbers import p_value, round_digits
from flaxformer.statistics.law_losses import DESCRIPTIONS
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.store.declaration import Declaration

JOINT_NUMBERS = ("α", "A", "β", "B", "L∞", "a")
"""Columns of a joint law."""
AMPLITUDES = ("A", "B")


class Cells(NamedTuple):
    """Content of a table: title, header, rows, and the number of columns of text, which come first."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int


def interval(one: LawEstimate | None, sign: str = "") -> str:
    """An estimate with its interval, such as "0.402 [0.391, 0.413]"; an end without a bound is infinite."""
    if one is None or math.isnan(one.value):
        return "–"
    widths = [abs(end - one.value) for end in (one.low, one.high) if math.isfinite(end)]
    value, low, high = numbers.numbers((one.value, one.low, one.high), max(widths, default=math.nan), sign)
    return value if math.isnan(one.low) else f"{value} [{low}, {high}]"


def size(value: float) -> str:
    """A number of FLOPs, parameters or tokens, such as "4,096" or "9.22e11"."""
    if not 1e6 <= value < math.inf:
        return round_digits(value)
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _amplitude(one: LawEstimate | None) -> str:
    """An amplitude, whose interval spans orders of magnitude, with two digits for each end."""
    return (
        "–"
        if one is None
        else f"{round_digits(one.value, 2)} [{round_digits(one.low, 2)}, {round_digits(one.high, 2)}]"
    )


def cells(analysis: Analysis) -> list[Cells]:
    """Tables of the fits, of held-out sizes, and of predicted effects; none for a study without scaling."""
    scaling = analysis.scaling
    if scaling is None:
        return []
    axes = [axis.name for axis in analysis.study.axes if axis.name != scaling.axis]
    metric, variable = phrasing.metric(analysis.study), scaling.names[scaling.variable]
    fits = [_fit(one, scaling.names) for one in (*scaling.fits, *scaling.other_fits)]
    header = [*axes, "C", "law", "α [95 %]", "A [95 %]", "L∞ [95 %]", "p (misfit)", "fitted sizes", "seeds"]
    held_out = [_held_out_cells(fit, one) for fit in scaling.fits for one in fit.held_out]
    held_out_header = [*axes, scaling.axis, variable, f"predicted {metric} [95 %]", "observed", "inside"]
    effects = [_effect_cells(one) for one in scaling.effects]
    effect_header = [*axes, "minus", f"crossing in {variable} [95 %]", variable, f"effect on {metric} [95 %]", "seeds"]
    return [
        Cells("Scaling laws", header, fits, len(axes) + 2),
        Cells("Held-out sizes", held_out_header, held_out, len(axes) + 1),
        Cells(f"Effects at {FARTHEST:g} times the largest size", effect_header, effects, len(axes) + 2),
        *_joint_cells(scaling, axes),
    ]


def _joint_cells(scaling: ScalingAnalysis, axes: Sequence[str]) -> list[Cells]:
    """Tables of the joint laws and of the held-out sizes by them; none without joint laws."""
    if not scaling.joint_fits:
        return []
    header = [*axes, "joint law", *(f"{name} [95 %]" for name in JOINT_NUMBERS), "p (misfit)", "fitted sizes", "seeds"]
    held_out_header = [*axes, scaling.axis, "N", "D", "predicted [95 %]", "observed", "inside"]
    held_out = [_joint_held_out_cells(fit, one) for fit in scaling.joint_fits for one in fit.held_out]
    return [
        Cells(
            f"Joint laws in {scaling.names['parameters']} N and tokens D",
            header,
            [*map(_joint, scaling.joint_fits)],
            len(axes) + 1,
        ),
        Cells("Held-out sizes by the joint laws", held_out_header, held_out, len(axes) + 1),
    ]


def _fit(fit: ScalingFit, names: Mapping[str, str]) -> list[str]:
    own = [interval(fit.exponent), _amplitude(fit.amplitude), interval(fit.limit)]
    return [*fit.labels.values(), names[fit.variable], _known(fit), *own, *_basis(fit)]


def _joint(fit: JointFit) -> list[str]:
    """A joint law; `JOINT_NUMBERS` has the columns."""
    own = [(_amplitude if name in AMPLITUDES else interval)(fit.numbers.get(name)) for name in JOINT_NUMBERS]
    return [*fit.labels.values(), _known(fit), *own, *_basis(fit)]


def _known(fit: ScalingFit | JointFit) -> str:
    return f"not identified: {fit.reason}" if fit.reason else "identified"


def _basis(fit: ScalingFit | JointFit) -> list[str]:
    """The p-value of the misfit, and the numbers of sizes and seeds."""
    p = "–" if math.isnan(fit.misfit_p) else p_value(fit.misfit_p)
    return [p, str(len(fit.fitted)), str(len(fit.seeds))]


def _held_out_cells(fit: ScalingFit, one: HeldOut) -> list[str]:
    return [*fit.labels.values(), one.point.label, size(one.point.size), *_prediction(one)]


def _joint_held_out_cells(fit: JointFit, one: HeldOut) -> list[str]:
    assert isinstance(one.point, JointPoint)
    return [*fit.labels.values(), one.point.label, size(one.point.size), size(one.point.tokens), *_prediction(one)]


def _prediction(one: HeldOut) -> list[str]:
    """The predicted mean, the observed one, and whether it is inside the interval."""
    inside = {True: "yes", False: "no", None: "–"}[one.is_inside]
    return [interval(one.predicted), _observed(one), inside]


def _effect_cells(one: PredictedEffect) -> list[str]:
    effect = interval(one.effect, "+")
    return [*one.labels.values(), phrasing.arm(one.reference), crossing(one), size(one.size), effect, str(one.seeds)]


def _observed(one: HeldOut) -> str:
    widths = [abs(end - one.predicted.value) for end in (one.predicted.low, one.predicted.high) if math.isfinite(end)]
    return numbers.number(one.observed, max(widths, default=math.nan))


def crossing(effect: PredictedEffect) -> str:
    """Places at which two laws may cross, and that there is none, or that the seeds do not decide."""
    if effect.effect is None:
        return "–"
    low, high = (size(end) for end in effect.searched)
    if not effect.crossings:
        return f"none from {low} to {high}"
    return "; ".join(_one_crossing(one, low, high) for one in effect.crossings)


def _one_crossing(one: Crossing, low: str, high: str) -> str:
    ends = f"[{size(one.low) if one.low > 0 else f'below {low}'}, " + (
        f"{size(one.high)}]" if math.isfinite(one.high) else f"above {high}]"
    )
    if one.low == 0 and math.isinf(one.high):
        return f"not determined from {low} to {high}"
    return f"not excluded in {ends}" if math.isnan(one.value) else f"{size(one.value)} {ends}"


def findings(analysis: Analysis) -> list[str]:
    """The law of each arm and the effects that follow from the laws, in a sentence each; joint laws come first."""
    scaling = analysis.scaling
    if scaling is None:
        return []
    variable = scaling.names[scaling.variable]
    return [
        *joint_findings(analysis),
        *(_law(fit, variable) for fit in scaling.fits),
        *(_held_out(fit, one) for fit in scaling.fits for one in fit.held_out),
        *(_effect(one, variable, analysis.study) for one in scaling.effects if one.effect is not None),
    ]


def joint_findings(analysis: Analysis) -> list[str]:
    """The joint law of each arm, and its predictions of held-out sizes, in a sentence each."""
    fits = analysis.scaling.joint_fits if analysis.scaling is not None else []
    return [
        *(_joint_law(fit) for fit in fits if not fit.reason),
        *(_held_out(fit, one) for fit in fits for one in fit.held_out),
    ]


def _where(fit: ScalingFit | JointFit) -> str:
    return phrasing.labels(fit.labels) or "scaling law"


def _law(fit: ScalingFit, variable: str) -> str:
    if fit.reason:
        return f"{_where(fit)}: L∞ + A·C^(−α) is not identified because {fit.reason} (C: {variable})"
    return (
        f"{_where(fit)}: L∞ {interval(fit.limit)}, A {_amplitude(fit.amplitude)}, α {interval(fit.exponent)} "
        f"(C: {variable})"
    )


def _joint_law(fit: JointFit) -> str:
    own = ", ".join(f"{name} {interval(fit.numbers[name])}" for name in JOINT_NUMBERS if name not in AMPLITUDES)
    how = f"best N ∝ C^a; by {DESCRIPTIONS[fit.loss]}"
    return f"{_where(fit)}: L∞ + A·N^(−α) + B·D^(−β) with {own} ({how})"


def _held_out(fit: ScalingFit | JointFit, one: HeldOut) -> str:
    place = {True: ", inside", False: ", outside", None: ""}[one.is_inside]
    observed = "no result yet" if math.isnan(one.observed) else f"observed {_observed(one)}{place}"
    law = " by the joint law" if isinstance(fit, JointFit) else ""
    return f"{_where(fit)}, held-out {one.point.label}: predicted {interval(one.predicted)}{law}, {observed}"


def _effect(one: PredictedEffect, variable: str, study: Declaration) -> str:
    unit = f" {study.unit}" if study.unit else ""
    return (
        f"{phrasing.arm(one.labels)} minus {phrasing.arm(one.reference)} at {size(one.size)} {variable} "
        f"({FARTHEST:g} times the largest size): {interval(one.effect, '+')}{unit}; crossing: {crossing(one)}"
    )
