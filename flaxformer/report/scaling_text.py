"""Scaling laws in words."""

import math

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.joint_fit import JointFit
from flaxformer.analysis.scaling_analysis import Crossing, PredictedEffect
from flaxformer.analysis.scaling_fit import FARTHEST, HeldOut, ScalingFit
from flaxformer.report import numbers, phrasing
from flaxformer.report.numbers import round_digits
from flaxformer.statistics.law_losses import DESCRIPTIONS
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.store.declaration import Declaration

JOINT_NUMBERS = ("α", "A", "β", "B", "L∞", "a")
"""Columns of a joint law."""
AMPLITUDES = ("A", "B")


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
