"""Tables of the scaling laws: fits, held-out sizes, and predicted effects."""

from typing import TypeVar

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.joint_fit import JointFit, JointPoint
from flaxformer.analysis.scaling_analysis import PredictedEffect, ScalingAnalysis
from flaxformer.analysis.scaling_fit import FARTHEST, HeldOut, ScalingFit
from flaxformer.report import phrasing
from flaxformer.report.numbers import p_value
from flaxformer.report.scaling_text import AMPLITUDES, JOINT_NUMBERS, amplitude, crossing, interval, observed_text, size
from flaxformer.report.table import PRINTED, ItemTable, TableColumn, levels, number, words

Fit = TypeVar("Fit", ScalingFit, JointFit)
Prediction = tuple[ScalingFit | JointFit, HeldOut]
"""A law, and its prediction of a held-out size."""
INSIDE = {True: "yes", False: "no", None: "–"}


def scaling(analysis: Analysis) -> list[ItemTable]:
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
