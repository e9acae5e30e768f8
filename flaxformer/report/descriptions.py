"""Descriptions of figures in words and numbers, for readers who do not see them."""

from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.sweep import Sweep
from flaxformer.report import heads, numbers, phrasing, scaling_text, verdicts
from flaxformer.system.wording import count_of

MOST = 12
"""Number of items that a description lists."""


def describe_claims(analysis: Analysis) -> str:
    """Verdict, effect and claimed region of each claim."""
    items = [f"{verdicts.verdict_of(claim)}: {claim.text} ({phrasing.finding(claim)})" for claim in analysis.claims]
    return f"{count_of(len(items), 'claim')}. {_shortened(items)}"


def describe_scores(analysis: Analysis, found: Sequence[ArmSummary]) -> str:
    """Mean and interval of each arm or quantity, in increasing order."""
    shown = sorted((one for one in found if one.estimate.n), key=lambda one: one.estimate.mean)
    items = [f"{phrasing.arm(one.labels)} {phrasing.interval(one.estimate)}" for one in shown]
    what = phrasing.metric(analysis.study) if analysis.arms else "value"
    return f"Mean {what} in increasing order: {_shortened(items)}"


def describe_curves(analysis: Analysis) -> str:
    """First and last mean of each learning curve."""
    items = []
    for arm in analysis.arms:
        if (curve := arm.curve(analysis.study.metric)) is not None:
            steps, points = curve
            first, last = numbers.number(points[0].mean), numbers.number(points[-1].mean)
            items.append(
                f"{phrasing.arm(arm.labels)} from {first} at step {steps[0]:,} to {last} at step {steps[-1]:,}"
            )
    return f"{phrasing.metric(analysis.study)} during training: {_shortened(items)}"


def describe_sweep(analysis: Analysis, sweep: Sweep) -> str:
    """Range of values, best value and optimum of each line."""
    names = " and ".join(sweep.names)
    values = [value for line in sweep.lines for point in line.points for value in [point.numbers[sweep.names[0]]]]
    stopped = sum(point.arm.stopped_at is not None for line in sweep.lines for point in line.points)
    tried = f"{sweep.names[0]} from {numbers.round_digits(min(values))} to {numbers.round_digits(max(values))}"
    remark = f", {count_of(stopped, 'arm')} stopped early" if stopped else ""
    items = phrasing.sweep_findings(analysis, [sweep])
    return f"{phrasing.metric(analysis.study)} against {names}: {tried}{remark}. {_shortened(items)}"


def describe_scaling(analysis: Analysis) -> str:
    """Law of each arm, predictions of held-out sizes, and effects at ten times the largest size."""
    return f"{phrasing.metric(analysis.study)} against size: {_shortened(scaling_text.findings(analysis))}"


def describe_joint_laws(analysis: Analysis) -> str:
    """Joint law of each arm, and predictions of held-out sizes."""
    found = scaling_text.joint_findings(analysis)
    return f"{phrasing.metric(analysis.study)} against training tokens, per number of parameters: {_shortened(found)}"


def describe_heads(analysis: Analysis) -> str:
    """Largest mean of each layer, for every quantity."""
    grids = heads.head_grids(analysis)
    items = [
        f"{grid.quantity.replace('_', ' ')} in {layer} up to {phrasing.interval(max(own, key=lambda one: one.mean))}"
        for grid in grids
        for layer, own in grid.layers.items()
    ]
    return f"Numbers per head: {_shortened(items)}"


def describe_lens(analysis: Analysis) -> str:
    """Loss after the first and the last block of each arm."""
    items = [
        f"{name} from {phrasing.interval(points[0])} after 0 blocks to {phrasing.interval(points[-1])} after "
        f"{len(points) - 1}"
        for name, points in heads.lens_curves(analysis).items()
    ]
    return f"Logit lens: {_shortened(items)}"


def _shortened(items: Sequence[str]) -> str:
    more = len(items) - MOST
    return "; ".join(items[:MOST]) + (f"; and {more} more, in the tables" if more > 0 else "") + "."
