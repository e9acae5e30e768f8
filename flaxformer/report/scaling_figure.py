"""Figures of the scaling laws: the metric against size, or against tokens per number of parameters."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.joint_fit import JointFit, JointPoint
from flaxformer.analysis.scaling_fit import FARTHEST, ScalingFit
from flaxformer.report import numbers, phrasing, scaling_text
from flaxformer.report.drawing import (
    COLUMN,
    Dashes,
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
from flaxformer.study.scale import VARIABLE_NAMES

POINTS, BANDS = 100, 12
"""Number of points of a curve, and of those of its band, between which the band is joined by lines."""
MOST_BANDS = 6
"""Number of arms up to which the curves have bands."""
MOST_ARMS = 4
"""Largest number of arms that are drawn, in a panel each."""
JOINT_POINTS = 60
DASHED: Dashes = (0, (4, 2))


def scaling_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Means with intervals at every size, curves and pointwise bands up to ten times the largest size."""
    scaling = analysis.scaling
    shown = [fit for fit in scaling.fits if _has_results(fit)] if scaling is not None else []
    if scaling is None or not shown:
        return None
    names = [phrasing.arm(fit.labels) for fit in shown]
    has_legend = len(names) > 1
    legend = legend_height(names, width) + 0.1 if has_legend else 0.0
    figure, [ax] = draw_panels(1, 1, width, (2.2 if width == COLUMN else 2.9) + legend)
    largest = FARTHEST * max(point.size for fit in shown for point in fit.points)
    values: list[float] = []
    for i, (fit, name) in enumerate(zip(shown, names, strict=True)):
        values += _draw_points(ax, fit, style_of(i), name)
        values += _draw_curve(ax, fit, style_of(i), largest, has_band=len(shown) <= MOST_BANDS)
    set_log_scale(ax, "x")
    ax.xaxis.set_major_formatter(lambda value, _: scaling_text.size(value))
    if has_wide_range(values, 10.0):
        set_log_scale(ax, "y")
    else:
        low, high = min(values), max(values)
        ax.set_ylim(low - 0.08 * (high - low or 1.0), high + 0.08 * (high - low or 1.0))
    draw_references(analysis.study, ax, "y", (min(values), max(values)))
    ax.set_xlabel(scaling.names[scaling.variable])
    ax.set_ylabel(phrasing.metric(analysis.study))
    ax.grid(axis="both")
    if has_legend:
        add_legend(figure, [ax], names)
    return figure


def _has_results(fit: ScalingFit) -> bool:
    return any(point.arm.estimate.n and point.size > 0 for point in fit.points)


def _draw_points(ax: Axes, fit: ScalingFit, style: LineStyle, name: str) -> list[float]:
    """Draw the mean of every size with its interval, held-out sizes hollow; return the means."""
    shown = [point for point in fit.points if point.arm.estimate.n and point.size > 0]
    ax.plot([], [], ls="-" if fit.theta is not None else "none", color=style.colour, marker=style.marker, ms=3.4,
            lw=1.0, label=name)  # fmt: skip
    for point in shown:
        point_style = LineStyle(style.colour, style.marker, style.dashes, is_hollow=point.is_held_out)
        draw_interval(ax, point.size, point.arm.estimate.mean, point.arm.estimate, point_style, "y")
        kind = ", held out" if point.is_held_out else ""
        text = f"{name}, {point.label}{kind}, {scaling_text.size(point.size)}: {phrasing.interval(point.arm.estimate)}"
        add_hover_text(ax, point.size, point.arm.estimate.mean, text)
    return [point.arm.estimate.mean for point in shown]


def _draw_curve(ax: Axes, fit: ScalingFit, style: LineStyle, largest: float, has_band: bool) -> list[float]:
    """Draw the law, dashed beyond the fitted sizes, with its band; return its ends."""
    if fit.theta is None:
        return []
    first, last = fit.fitted_points[0].size, fit.fitted_points[-1].size
    within, beyond = np.geomspace(first, last, POINTS), np.geomspace(last, largest, POINTS)
    ax.plot(within, fit.curve_at(within), color=style.colour, lw=1.0, label="_")
    ax.plot(beyond, fit.curve_at(beyond), color=style.colour, lw=1.0, ls=(0, (4, 2)), label="_")
    if has_band:
        places = np.geomspace(first, largest, BANDS)
        band = [fit.value_at(float(place)) for place in places]
        low, high = (np.array([getattr(estimate, end) for estimate in band]) for end in ("low", "high"))
        is_bounded = np.isfinite(low) & np.isfinite(high)
        ax.fill_between(places, low, high, where=is_bounded, color=style.colour, alpha=0.18, lw=0)
        add_hover_text(
            ax, largest, band[-1].value, f"law at {scaling_text.size(largest)}: {scaling_text.interval(band[-1])}"
        )
    return [float(value) for value in fit.curve_at(np.array([first, largest]))]


def joint_law_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Means with intervals at every size, held-out ones hollow, and the law at each number of parameters.

    A line is dashed where no run was fitted: beyond the fitted numbers of tokens, and at the numbers of parameters of
    held-out sizes alone. Without a fitted law, or without results, an arm is not drawn.
    """
    fits = analysis.scaling.joint_fits if analysis.scaling is not None else []
    shown = [fit for fit in fits if fit.theta is not None][:MOST_ARMS]
    if not shown:
        return None
    names = _names(shown)
    columns = min(len(shown), 2)
    height = (1.7 if width == COLUMN else 2.3) * -(-len(shown) // columns) + legend_height(names, width) + 0.2
    figure, axes = draw_panels(len(shown), columns, width, height, sharex=True, sharey=True)
    values = [value for ax, fit in zip(axes, shown, strict=True) for value in _draw(ax, fit, names)]
    for i, (ax, fit) in enumerate(zip(axes, shown, strict=True)):
        set_log_scale(ax, "x", text=scaling_text.size)
        if has_wide_range(values, 10.0):
            set_log_scale(ax, "y")
        ax.set_title(phrasing.arm(fit.labels) if fit.labels else "")
        ax.set_xlabel(VARIABLE_NAMES["tokens"] if i + columns >= len(shown) else "")
        ax.set_ylabel(phrasing.metric(analysis.study) if i % columns == 0 else "")
        ax.grid(axis="both")
    add_legend(figure, axes, names)
    return figure


def _names(fits: Sequence[JointFit]) -> list[str]:
    """The number of parameters of each line, from the smallest; arms of similar numbers share a line."""
    ranks = itertools.zip_longest(*map(_sizes, fits))
    return [f"N = {', '.join(map(scaling_text.size, sorted({*sizes} - {None})))}" for sizes in ranks]


def _sizes(fit: JointFit) -> list[float]:
    """The numbers of parameters of an arm, increasing."""
    return sorted({point.size for point in fit.points})


def _draw(ax: Axes, fit: JointFit, names: Sequence[str]) -> list[float]:
    """Draw the points and the law of one arm; return the means."""
    first, last = (end(point.tokens for point in fit.fitted_points) for end in (min, max))
    largest = max(point.tokens for point in fit.points)
    values: list[float] = []
    for i, (size, name) in enumerate(zip(_sizes(fit), names, strict=False)):
        style, points = style_of(i), [point for point in fit.points if point.size == size]
        ax.plot([], [], color=style.colour, marker=style.marker, ms=3.4, lw=1.0, label=name)
        is_fitted = any(not point.is_held_out for point in points)
        segments = [(first, last, "-" if is_fitted else DASHED)] + [(last, largest, DASHED)] * (largest > last)
        for low, high, dashes in segments:
            tokens = np.geomspace(low, high, JOINT_POINTS)
            ax.plot(tokens, fit.curve_at(size, tokens), color=style.colour, lw=1.0, ls=dashes, label="_")
        values += [_draw_point(ax, fit, point, style) for point in points if point.arm.estimate.n]
    return values


def _draw_point(ax: Axes, fit: JointFit, point: JointPoint, style: LineStyle) -> float:
    """Draw the mean of one size with its interval; return it."""
    estimate = point.arm.estimate
    point_style = LineStyle(style.colour, style.marker, is_hollow=point.is_held_out)
    draw_interval(ax, point.tokens, estimate.mean, estimate, point_style, "y")
    [law] = fit.curve_at(point.size, np.array([point.tokens]))
    kind = ", held out" if point.is_held_out else ""
    text = f"{point.label}{kind}: {phrasing.interval(estimate)}; law {numbers.round_digits(float(law))}"
    add_hover_text(ax, point.tokens, estimate.mean, text)
    return estimate.mean
