"""Figures of the scores at the end: arms, and the quantities of a probe."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import phrasing
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    draw_estimate,
    draw_references,
    has_wide_range,
    set_log_scale,
    style_of,
    wrap,
)
from flaxformer.system.wording import count_of

SHORT = 24
"""Characters of a line of a label in a figure as wide as a column."""
ROW, LINE, MARGIN = 0.17, 0.11, 0.62
"""Inches of a row with a label of one line, of each further line, and of the axis with its label."""


def arms_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Every arm; arms that differ in the first axis alone share a style."""
    shown = [arm for arm in analysis.arms if arm.estimate.n]
    styles = series_styles(analysis)
    axes = "" if analysis.study.combine == "leave-one-out" else " · ".join(analysis.axes)
    metric = phrasing.metric(analysis.study)
    figure = _draw_rows(shown, [styles[series(analysis, arm)] for arm in shown], metric, axes, width)
    if figure:
        scores = _scores(shown)
        draw_references(analysis.study, figure.axes[0], "x", (min(scores), max(scores)))
    return figure


def quantities_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Every measured number, for a probe without claims."""
    shown = [quantity for quantity in analysis.quantities if quantity.estimate.n]
    return _draw_rows(shown, [style_of(0)] * len(shown), analysis.study.unit or "value", "", width)


def _scores(arms: Sequence[ArmSummary]) -> list[float]:
    return [score for arm in arms for score in arm.scores if score is not None]


def _draw_rows(
    shown: Sequence[ArmSummary], styles: Sequence[LineStyle], xlabel: str, ylabel: str, width: float
) -> Figure | None:
    """Draw a row for each arm or quantity: seeds, mean and interval."""
    if not shown:
        return None
    names = [wrap(phrasing.arm(arm.labels), int(SHORT * width / COLUMN)) for arm in shown]
    rows = len(shown) + (max(map(len, names)) - 1) * LINE / ROW * len(shown)
    figure = Figure(figsize=(width, MARGIN + ROW * rows), layout="constrained")
    ax = figure.subplots()
    ax.set_ylim(len(shown) - 0.4, -0.6)
    for row, (arm, style) in enumerate(zip(shown, styles, strict=True)):
        draw_estimate(ax, row, [s for s in arm.scores if s is not None], arm.estimate, 0.3, style)
        text = f"{phrasing.arm(arm.labels)}: {phrasing.interval(arm.estimate)}"
        add_hover_text(ax, arm.estimate.mean, row, f"{text}, {count_of(arm.estimate.n, 'seed')}")
    if has_wide_range(_scores(shown)):
        set_log_scale(ax, "x")
    ax.set_yticks(range(len(shown)), ["\n".join(lines) for lines in names])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(axis="both")
    return figure


def panel_axis(analysis: Analysis) -> str | None:
    """Name of the axis with a panel per level: the first of several; None for a single axis, or for features."""
    axes = analysis.study.axes
    return axes[0].name if len(axes) > 1 and analysis.study.combine != "leave-one-out" else None


def series(analysis: Analysis, arm: ArmSummary) -> str:
    """Name of an arm by its levels on the axes that have no panels."""
    return phrasing.arm({axis: label for axis, label in arm.labels.items() if axis != panel_axis(analysis)})


def series_styles(analysis: Analysis) -> dict[str, LineStyle]:
    """Style of each series by its name."""
    names = dict.fromkeys(series(analysis, arm) for arm in analysis.arms)
    return {name: style_of(i) for i, name in enumerate(names)}
