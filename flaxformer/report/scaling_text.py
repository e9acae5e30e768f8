"""Scaling laws in words and in tables."""

import math
from typing import TypeVar

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.joint_fit import JointFit, JointPoint
from flaxformer.analysis.scaling_analysis import Crossing, PredictedEffect, ScalingAnalysis
from flaxformer.analysis.scaling_fit import FARTHEST, HeldOut, ScalingFit
from flaxformer.report import numbers, phrasing
from flaxformer.report.numbers import p_value, round_digits
from flaxformer.report.table import PRINTED, ItemTable, TableColumn, levels, number, words
from flaxformer.statistics.law_losses import DESCRIPTIONS
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.store.declaration import Declaration

JOINT_NUMBERS = ("α", "A", "β", "B", "L∞", "a")
"""Columns of a joint law."""
AMPLITUDES = ("A", "B")
Fit = TypeVar("Fit", ScalingFit, JointFit)
Prediction = tuple[ScalingFit | JointFit, HeldOut]
"""A law, and its prediction of a held-out size."""
INSIDE = {True: "yes", False: "no", None: "–"}


def interval(estimate: LawEstimate | None, sign: str = "") -> str:
    """An estimate with its interval, such as "0.402 [0.391, 0.413]"; an end without a bound is infinite."""
    if estimate is None or math.isnan(estimate.value):
        return "–"
    ends = estimate.low, estimate.high
    widths = [abs(end - estimate.value) for end in ends if math.isfinite(end)]
    value, low, high = numbers.numbers((estimate.value, *ends), max(widths, default=math.nan), sign)
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"


def size(value: float) -> str:
    """A number of FLOPs, parameters or tokens, such as "4,096" or "9.22e11"."""
    if not 1e6 <= value < math.inf:
        return round_digits(value)
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def amplitude(estimate: LawEstimate | None) -> str:
    """An amplitude, whose interval spans orders of magnitude, with two digits for each end."""
    return (
        "–"
        if estimate is None
        else f"{round_digits(estimate.value, 2)} [{round_digits(estimate.low, 2)}, {round_digits(estimate.high, 2)}]"
    )


def observed_text(held_out: HeldOut) -> str:
    """The observed mean, with the digits of the predicted one."""
    predicted = held_out.predicted
    widths = [abs(end - predicted.value) for end in (predicted.low, predicted.high) if math.isfinite(end)]
    return numbers.number(held_out.observed, max(widths, default=math.nan))


def crossing(effect: PredictedEffect) -> str:
    """Places at which two laws may cross, and that there is none, or that the seeds do not decide."""
    if effect.effect is None:
        return "–"
    low, high = (size(end) for end in effect.searched)
    if not effect.crossings:
        return f"none from {low} to {high}"
    return "; ".join(_one_crossing(place, low, high) for place in effect.crossings)


def _one_crossing(place: Crossing, low: str, high: str) -> str:
    ends = f"[{size(place.low) if place.low > 0 else f'below {low}'}, " + (
        f"{size(place.high)}]" if math.isfinite(place.high) else f"above {high}]"
    )
    if place.low == 0 and math.isinf(place.high):
        return f"not determined from {low} to {high}"
    return f"not excluded in {ends}" if math.isnan(place.value) else f"{size(place.value)} {ends}"


def findings(analysis: Analysis) -> list[str]:
    """The law of each arm and the effects that follow from the laws, in a sentence each; joint laws come first."""
    scaling = analysis.scaling
    if scaling is None:
        return []
    variable = scaling.names[scaling.variable]
    return [
        *joint_findings(analysis),
        *(_law(fit, variable) for fit in scaling.fits),
        *(_held_out(fit, held_out) for fit in scaling.fits for held_out in fit.held_out),
        *(_effect(effect, variable, analysis.study) for effect in scaling.effects if effect.effect is not None),
    ]


def joint_findings(analysis: Analysis) -> list[str]:
    """The joint law of each arm, and its predictions of held-out sizes, in a sentence each."""
    fits = analysis.scaling.joint_fits if analysis.scaling is not None else []
    return [
        *(_joint_law(fit) for fit in fits if not fit.reason),
        *(_held_out(fit, held_out) for fit in fits for held_out in fit.held_out),
    ]


def _where(fit: ScalingFit | JointFit) -> str:
    return phrasing.labels(fit.labels) or "scaling law"


def _law(fit: ScalingFit, variable: str) -> str:
    if fit.reason:
        return f"{_where(fit)}: L∞ + A·C^(−α) is not identified because {fit.reason} (C: {variable})"
    return (
        f"{_where(fit)}: L∞ {interval(fit.limit)}, A {amplitude(fit.amplitude)}, α {interval(fit.exponent)} "
        f"(C: {variable})"
    )


def _joint_law(fit: JointFit) -> str:
    values = ", ".join(f"{name} {interval(fit.numbers[name])}" for name in JOINT_NUMBERS if name not in AMPLITUDES)
    how = f"best N ∝ C^a; by {DESCRIPTIONS[fit.loss]}"
    return f"{_where(fit)}: L∞ + A·N^(−α) + B·D^(−β) with {values} ({how})"


def _held_out(fit: ScalingFit | JointFit, held_out: HeldOut) -> str:
    place = {True: ", inside", False: ", outside", None: ""}[held_out.is_inside]
    result = "no result yet" if math.isnan(held_out.observed) else f"observed {observed_text(held_out)}{place}"
    law = " by the joint law" if isinstance(fit, JointFit) else ""
    return f"{_where(fit)}, held-out {held_out.point.label}: predicted {interval(held_out.predicted)}{law}, {result}"


def _effect(effect: PredictedEffect, variable: str, study: Declaration) -> str:
    unit = f" {study.unit}" if study.unit else ""
    return (
        f"{phrasing.arm(effect.labels)} minus {phrasing.arm(effect.reference)} at {size(effect.size)} {variable} "
        f"({FARTHEST:g} times the largest size): {interval(effect.effect, '+')}{unit}; crossing: {crossing(effect)}"
    )


def tables(analysis: Analysis) -> list[ItemTable]:
    """Tables of the laws in one size and of the effects that they predict, and of the joint laws."""
    if (laws := analysis.scaling) is None:
        return []
    axes, metric, variable = _axes(analysis, laws), phrasing.metric(analysis.study), laws.names[laws.variable]
    held_out: list[TableColumn[Prediction]] = [
        *levels(axes, lambda item: item[0].labels),
        words(laws.axis, lambda item: item[1].point.label),
        number(variable, lambda item: item[1].point.size, size),
        *_prediction(f"predicted {metric} [95 %]"),
    ]
    effects: list[TableColumn[PredictedEffect]] = [
        *levels(axes, lambda item: item.labels),
        words("minus", lambda item: phrasing.arm(item.reference)),
        words(f"crossing in {variable} [95 %]", crossing),
        number(variable, lambda item: item.size, size),
        number(f"effect on {metric} [95 %]", lambda item: item.effect, lambda effect: interval(effect, "+")),
        number("seeds", lambda item: item.seeds),
    ]
    title = f"Effects at {FARTHEST:g} times the largest size"
    return [
        _laws(analysis, laws),
        ItemTable("Held-out sizes", held_out, [(fit, item) for fit in laws.fits for item in fit.held_out], on=PRINTED),
        ItemTable(title, effects, laws.effects, on=PRINTED),
        *(_joint(analysis, laws) if laws.joint_fits else []),
    ]


def _laws(analysis: Analysis, laws: ScalingAnalysis) -> ItemTable[ScalingFit]:
    columns: list[TableColumn[ScalingFit]] = [
        *levels(_axes(analysis, laws), lambda fit: fit.labels),
        words("C", lambda fit: laws.names[fit.variable]),
        words("law", _identification),
        number("α [95 %]", lambda fit: fit.exponent, interval),
        number("A [95 %]", lambda fit: fit.amplitude, amplitude),
        number("L∞ [95 %]", lambda fit: fit.limit, interval),
        *_basis(ScalingFit),
    ]
    return ItemTable("Scaling laws", columns, [*laws.fits, *laws.other_fits], on=PRINTED)


def _joint(analysis: Analysis, laws: ScalingAnalysis) -> list[ItemTable]:
    """Tables of the joint laws, and of the held-out sizes by them."""

    def coefficient(name: str) -> TableColumn[JointFit]:
        form = amplitude if name in AMPLITUDES else interval
        return number(f"{name} [95 %]", lambda fit: fit.numbers.get(name), form)

    def tokens(item: Prediction) -> float:
        assert isinstance(item[1].point, JointPoint)
        return item[1].point.tokens

    columns: list[TableColumn[JointFit]] = [
        *levels(_axes(analysis, laws), lambda fit: fit.labels),
        words("joint law", _identification),
        *map(coefficient, JOINT_NUMBERS),
        *_basis(JointFit),
    ]
    held_out: list[TableColumn[Prediction]] = [
        *levels(_axes(analysis, laws), lambda item: item[0].labels),
        words(laws.axis, lambda item: item[1].point.label),
        number("N", lambda item: item[1].point.size, size),
        number("D", tokens, size),
        *_prediction("predicted [95 %]"),
    ]
    predictions = [(fit, item) for fit in laws.joint_fits for item in fit.held_out]
    title = f"Joint laws in {laws.names['parameters']} N and tokens D"
    return [
        ItemTable(title, columns, laws.joint_fits, on=PRINTED),
        ItemTable("Held-out sizes by the joint laws", held_out, predictions, on=PRINTED),
    ]


def _axes(analysis: Analysis, laws: ScalingAnalysis) -> list[str]:
    """Names of the axes beside that of the sizes."""
    return [axis for axis in analysis.axes if axis != laws.axis]


def _identification(fit: ScalingFit | JointFit) -> str:
    return f"not identified: {fit.reason}" if fit.reason else "identified"


def _basis(kind: type[Fit]) -> list[TableColumn[Fit]]:
    """Columns of the p-value of the misfit, and of the numbers of sizes and seeds."""
    return [
        number("p (misfit)", lambda fit: fit.misfit_p, p_value),
        number("fitted sizes", lambda fit: len(fit.fitted_points)),
        number("seeds", lambda fit: len(fit.seeds)),
    ]


def _prediction(title: str) -> list[TableColumn[Prediction]]:
    """Columns of the predicted mean, the observed one, and whether it is inside the interval."""
    return [
        number(title, lambda item: item[1].predicted, interval),
        TableColumn("observed", lambda item: observed_text(item[1])),
        TableColumn("inside", lambda item: INSIDE[item[1].is_inside]),
    ]
