"""Figure of a sweep: the metric against a number such as the learning rate, a line per combination of other axes."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.sweep import Sweep, SweepLine, SweepPoint
from flaxformer.report import numbers, phrasing
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    add_legend,
    draw_interval,
    draw_panels,
    draw_references,
    has_wide_range,
    legend_height,
    set_log_scale,
    style_of,
)
from flaxformer.report.thinning import thin_out
from flaxformer.statistics.estimates import Estimate
from flaxformer.system.wording import join_words

MOST_NAMED = 16
"""Number of lines up to which the figure has a legend."""
BAR = 0.035
"""Height of the interval of an optimum, as a fraction of the axis."""
SMALLEST, LARGEST = 1e-100, 1e100
"""Sizes of the numbers, other than 0, that an axis can show; a sweep beyond them has a table and no figure."""
MOST_TICKS = 5
"""Number of values up to which each has a tick with its number."""


def sweep_figure(analysis: Analysis, sweep: Sweep, width: float = COLUMN) -> Figure | None:
    """A panel per number: means with intervals, stopped runs as hollow marks, and the optima's intervals as bars.

    Numbers that rise together, such as the sizes of a wider model, share a panel at the values of the first.
    """
    sweep = thin_out(sweep)
    sizes = [abs(number) for line in sweep.lines for point in line.points for number in point.numbers.values()]
    if not any(line.best for line in sweep.lines) or not all(size == 0 or SMALLEST < size < LARGEST for size in sizes):
        return None
    names = [phrasing.labels(line.labels) for line in sweep.lines]
    has_legend = 1 < len(names) <= MOST_NAMED
    panels = _rising_together(sweep)
    columns = 1 if width == COLUMN else min(len(panels), 2)
    legend = legend_height(names, width) + 0.1 if has_legend else 0.0
    height = -(-len(panels) // columns) * (2.2 if width == COLUMN else 2.9)
    figure, shown = draw_panels(len(panels), columns, width, height + legend, sharey=True)
    for i, (ax, (first, *further)) in enumerate(zip(shown, panels, strict=True)):
        _draw_panel(analysis, ax, sweep, first, is_joined=len(panels) == 1)
        ax.set_xlabel(f"{first}, with {join_words(further)}" if further else first)
        ax.set_ylabel(phrasing.metric(analysis.study) if i % columns == 0 else "")
    if has_legend:
        add_legend(figure, shown, names)
    return figure


def _rising_together(sweep: Sweep) -> list[list[str]]:
    """Names of the numbers in groups, in each of which all have the same order of levels."""
    groups: dict[tuple[int, ...], list[str]] = {}
    points = [point.numbers for line in sweep.lines for point in line.points]
    for name in sweep.names:
        values = sorted({point[name] for point in points})
        groups.setdefault(tuple(values.index(point[name]) for point in points), []).append(name)
    return list(groups.values())


def _draw_panel(analysis: Analysis, ax: Axes, sweep: Sweep, name: str, is_joined: bool) -> None:
    values = [point.numbers[name] for line in sweep.lines for point in line.points]
    _set_scale(ax, values)
    metric, scores = analysis.study.metric, []
    estimates = [point.arm.estimate for line in sweep.lines for point in line.points if point.arm.estimate.n]
    for i, line in enumerate(sweep.lines):
        style = style_of(i)
        scores += _draw_line(ax, line, name, style, is_joined=is_joined)
        scores += _draw_stopped(ax, line, name, metric, style)
    if has_wide_range(scores, 10.0):
        set_log_scale(ax, "y")
    else:
        low, high = min(scores), max(scores)
        ends = [end for estimate in estimates for end in (estimate.low, estimate.high) if math.isfinite(end)]
        low = max(min([low, *ends]), low - 0.4 * (high - low))
        high = min(max([high, *ends]), high + 0.4 * (high - low))
        room = BAR * (1 + sum(line.optimum is not None for line in sweep.lines))
        ax.set_ylim(low - (0.05 + 1.3 * room) * (high - low or 1.0), high + 0.06 * (high - low or 1.0))
    for i, line in enumerate(line for line in sweep.lines if line.optimum is not None):
        _draw_optimum(ax, line, BAR * (i + 1.0), style_of(list(sweep.lines).index(line)))
    draw_references(analysis.study, ax, "y", (min(scores), max(scores)))
    ax.grid(axis="both")


def _set_scale(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis for positive numbers, a symmetric one for numbers with a zero, else a linear one."""
    positive = [value for value in values if value > 0]
    if len(positive) == len(values):
        set_log_scale(ax, "x")
    elif min(values) == 0 and has_wide_range(positive, 10.0):
        set_log_scale(ax, "x", linear_until=min(positive))
    if len(ticks := sorted(set(values))) <= MOST_TICKS:
        ax.set_xticks(ticks, [numbers.round_digits(value) for value in ticks])
        ax.minorticks_off()


def _draw_line(ax: Axes, line: SweepLine, name: str, style: LineStyle, is_joined: bool) -> list[float]:
    """Draw the arms that were trained to the end; return the scores that the axis has to show."""
    label, shown = phrasing.labels(line.labels), [point for point in line.points if point.arm.estimate.n]
    x, y = [point.numbers[name] for point in shown], [point.arm.estimate.mean for point in shown]
    dashes = style.dashes if is_joined else "none"
    ax.plot(x, y, ls=dashes, color=style.colour, lw=1.0, marker=style.marker, ms=3.4, label=label)
    for point in shown:
        draw_interval(ax, point.numbers[name], point.arm.estimate.mean, point.arm.estimate, style, "y")
        _add_text(ax, line, point, name, point.arm.estimate, "")
    if line.best is not None:
        x_best, y_best = line.best.numbers[name], line.best.arm.estimate.mean
        ax.plot(x_best, y_best, "o", ms=9, color=style.colour, mfc="none", mew=0.9)
    return y


def _draw_stopped(ax: Axes, line: SweepLine, name: str, metric: str, style: LineStyle) -> list[float]:
    """Draw the arms that a halving stopped, at their score then, hollow and joined by step; return these scores."""
    scores = []
    for step in sorted({point.arm.stopped_at for point in line.points} - {None}, key=lambda step: step or 0):
        stopped = [point for point in line.points if point.arm.stopped_at == step]
        estimates = [point.arm.stopped_estimate(metric) for point in stopped]
        x, y = [point.numbers[name] for point in stopped], [estimate.mean for estimate in estimates]
        ax.plot(x, y, style.marker, ms=3.2, color=style.colour, mfc="white", mew=0.7, zorder=2)
        for point, estimate in zip(stopped, estimates, strict=True):
            _add_text(ax, line, point, name, estimate, f", stopped at step {step:,}")
        scores += y
    return scores


def _add_text(ax: Axes, line: SweepLine, point: SweepPoint, name: str, score: Estimate, remark: str) -> None:
    where = f"{phrasing.labels(line.labels)}, " if line.labels else ""
    text = f"{where}{name} {numbers.round_digits(point.numbers[name])}: {phrasing.interval(score)}{remark}"
    add_hover_text(ax, point.numbers[name], score.mean, text)


def _draw_optimum(ax: Axes, line: SweepLine, height: float, style: LineStyle) -> None:
    """Draw the interval of the optimum of a line at a height of the axis, as far as the axis goes."""
    if (optimum := line.optimum) is None:
        return
    low, high = ax.get_xlim()
    ends = [optimum.value if math.isnan(end) else end for end in (optimum.low, optimum.high)]
    begin, end = max(low, ends[0]), min(high, ends[1])
    if begin > end:
        return
    where = f"{phrasing.labels(line.labels)}, " if line.labels else ""
    place = ax.get_xaxis_transform()
    ax.plot([begin, end], [height, height], color=style.colour, lw=2.2, alpha=0.55, solid_capstyle="butt",
            transform=place, zorder=1)  # fmt: skip
    if low <= optimum.value <= high:
        ax.plot(optimum.value, height, "|", color=style.colour, ms=5, mew=1.2, transform=place, zorder=2)
    middle = optimum.value if low <= optimum.value <= high else math.sqrt(begin * end)
    add_hover_text(ax, middle, height, f"{where}optimum {phrasing.optimum(line)}", place)
    ax.set_xlim(low, high)
