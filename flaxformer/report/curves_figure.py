"""Figures of the learning curves: the metric against steps or compute, with a panel per level of the first axis."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec.structs import replace

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import phrasing
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    add_legend,
    draw_panels,
    draw_references,
    has_wide_range,
    legend_height,
    set_log_scale,
    set_whole_ticks,
    wrap,
)
from flaxformer.report.scores_figure import CHARACTER, LINE, panel_axis, series, series_styles
from flaxformer.statistics.estimates import Estimate
from flaxformer.study.divergence import on_validation
from flaxformer.system.wording import with_prefix

MOST_MARKERS = 9
"""Most points of a curve with a marker and a text under the pointer."""
MOST_STRAIGHT = 16
"""Most arms whose curves are drawn if each has two points, before and after training, as the tables do."""
Points: TypeAlias = tuple[Sequence[float], list[Estimate]]
"""Steps or FLOPs, and the estimate over seeds at each."""
Panels: TypeAlias = dict[str, dict[str, Points]]
"""Curves by series, by level of the first axis."""


def curves_figure(
    analysis: Analysis, width: float = COLUMN, against: Literal["step", "compute"] = "step"
) -> Figure | None:
    """The metric during training: means over seeds with pointwise 95 % intervals.

    Args:
      analysis: the study.
      width: inches.
      against: "compute" for the FLOPs so far, on a logarithmic axis without the evaluation before training.

    Returns:
      None without curves, and for more than `MOST_STRAIGHT` curves of two points against steps.
    """
    panels, axis = _panels(analysis, against), panel_axis(analysis)
    if not panels or (against == "step" and _are_straight(panels)):
        return None
    styles = series_styles(analysis)
    used = [name for name in styles if any(name in panel for panel in panels.values())]
    columns = _columns(len(panels), width)
    lines, legend = -(-len(panels) // columns), legend_height(used, width) + 0.2 if len(used) > 1 else 0.0
    height = 1.75 if width == COLUMN else 2.0 if columns > 1 else 2.6
    titles = [wrap(f"{axis} {level}" if axis else "", int(width / columns / CHARACTER)) for level in panels]
    height += LINE * (max(map(len, titles)) - 1)
    figure, shown = draw_panels(len(panels), columns, width, height * lines + legend + 0.1, sharex=True, sharey=True)
    metric = phrasing.metric(replace(analysis.study, metric=on_validation(analysis.study.metric)))
    for i, (ax, title, curves) in enumerate(zip(shown, titles, panels.values(), strict=True)):
        for name, curve in curves.items():
            _draw_curve(ax, curve, styles[name], name, against)
        ax.set_title("\n".join(title))
        ax.set_xlabel(
            {"step": "step", "compute": "training compute (FLOPs)"}[against] if i + columns >= len(panels) else ""
        )
        ax.set_ylabel(metric if i % columns == 0 else "")
        ax.tick_params(labelbottom=i + columns >= len(panels))
    _set_limits(analysis, shown, panels)
    if against == "compute":
        set_log_scale(shown[0], "x", text=lambda flops: with_prefix(flops, ""))
    else:
        set_whole_ticks(shown[0])
    if len(used) > 1:
        heading = " · ".join(study_axis.name for study_axis in analysis.study.axes if study_axis.name != axis)
        add_legend(figure, shown, used, heading)
    return figure


def _panels(analysis: Analysis, against: str) -> Panels:
    axis, panels = panel_axis(analysis), Panels()
    for arm in analysis.arms:
        curve: Points | None = arm.curve(on_validation(analysis.study.metric))
        if curve is not None and against == "compute":
            steps, points = curve
            cost = arm.cost
            curve = None if cost is None else ([step * cost.flops_per_step for step in steps[1:]], points[1:])
        if curve is not None:
            panels.setdefault(arm.labels[axis] if axis else "", {})[series(analysis, arm)] = curve
    return panels


def _are_straight(panels: Panels) -> bool:
    """True for many curves from the evaluation before training to that after it, which lie on one another."""
    curves = [steps for panel in panels.values() for steps, _ in panel.values()]
    return len(curves) > MOST_STRAIGHT and all(len(steps) <= 2 for steps in curves)


def _columns(panels: int, width: float) -> int:
    """Number of panels side by side."""
    if width == COLUMN:
        return min(panels, 2)
    return min(panels, 2 if panels == 4 else 3)


def _draw_curve(ax: Axes, curve: Points, style: LineStyle, name: str, against: str) -> None:
    steps, points = curve
    every = -(-len(steps) // MOST_MARKERS)
    means = [point.mean for point in points]
    ax.plot(steps, means, label=name, color=style.colour, ls=style.dashes, marker=style.marker, ms=2.6, markevery=every)
    if points[0].n > 1:
        low, high = [point.low for point in points], [point.high for point in points]
        ax.fill_between(steps, low, high, color=style.colour, alpha=0.18, lw=0)
    for step, point in list(zip(steps, points, strict=True))[::every]:
        where = f"step {step:,}" if against == "step" else with_prefix(step, "FLOP")
        add_hover_text(ax, step, point.mean, f"{name}, {where}: {phrasing.interval(point)}")


def _set_limits(analysis: Analysis, axes: Sequence[Axes], panels: Mapping[str, Mapping[str, Points]]) -> None:
    """Show the end of training rather than its steep first steps."""
    curves: Iterable[list[Estimate]] = [points for panel in panels.values() for _, points in panel.values()]
    means = [point.mean for points in curves for point in points]
    last = [points[-1].mean for points in curves]
    low, high = min(last), max(last)
    if analysis.study.metric == "validation_loss":
        axes[0].set_ylim(min(means) - 0.1, min(max(means), high + 0.6 * (high - low) + 0.3) + 0.05)
        for i, ax in enumerate(axes):
            draw_references(analysis.study, ax, "y", (low, high), has_names=i == len(axes) - 1)
    elif has_wide_range(means):
        set_log_scale(axes[0], "y")
