"""Figure of the scaling laws: the metric against size, with the fitted curves, their bands, and held-out sizes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.scaling_fit import FARTHEST, ScalingFit
from flaxformer.report import phrasing, scaling_text
from flaxformer.report.curves_figure import add_legend
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    draw_interval,
    draw_references,
    has_wide_range,
    set_log_scale,
    style_of,
)

POINTS, BANDS = 100, 12
"""Number of points of a curve, and of those of its band, between which the band is joined by lines."""
MOST_BANDS = 6
"""Number of arms up to which the curves have bands."""


def scaling_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Means with intervals at every size, curves and pointwise bands up to ten times the largest size."""
    scaling = analysis.scaling
    shown = [fit for fit in scaling.fits if _has_results(fit)] if scaling is not None else []
    if scaling is None or not shown:
        return None
    names = [phrasing.arm(fit.labels) for fit in shown]
    has_legend = len(names) > 1
    across = min(len(names), max(1, int(width * 16 / (8 + max(map(len, names))))))
    legend = 0.13 * -(-len(names) // across) + 0.1 if has_legend else 0.0
    figure = Figure(figsize=(width, (2.2 if width == COLUMN else 2.9) + legend), layout="constrained")
    ax = figure.subplots()
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
        add_legend(figure, [ax], names, "", across)
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
