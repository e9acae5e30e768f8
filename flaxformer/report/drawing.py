"""Style of all figures: widths of a paper's columns, colours that differ in grey too, points that show their value."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter
from matplotlib.transforms import Transform

from flaxformer.report import numbers
from flaxformer.report.colours import COLOURS, GREY
from flaxformer.report.thinning import dots
from flaxformer.statistics.estimates import Estimate
from flaxformer.store.declaration import Declaration

COLUMN, PAGE = 3.3, 6.9
"""Inches: the width of one column of a two-column paper, and of the page."""
SMALL = 6.0
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flaxformer",
    "pdf.fonttype": 42,  # fonts that publishers accept
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 7,
    "text.parse_math": False,  # labels are the author's text, not formulas
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "lines.linewidth": 1.1,
    "grid.color": "#e9e9e9",
    "grid.linewidth": 0.6,
}
MARKERS = "os^DvPX"
Dashes: TypeAlias = str | tuple[float, tuple[float, ...]]
DASHES: list[Dashes] = ["-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)), (0, (2, 1))]
POINT = "point: "
"""Prefix of the ids of invisible markers, followed by the text that they show under the pointer."""


@dataclasses.dataclass(frozen=True)
class LineStyle:
    """Style of a series: a colour and, to tell it apart in grey, a marker and dashes."""

    colour: str
    marker: str
    dashes: Dashes = "-"
    is_hollow: bool = False


def style_of(index: int) -> LineStyle:
    """Return the style of the index-th series; the cycles have coprime lengths, so that 280 are different."""
    return LineStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])


def add_hover_text(ax: Axes, x: float, y: float, text: str, transform: Transform | None = None) -> None:
    """Put an invisible marker on a point, by default of the data, which shows a text under the pointer in an SVG."""
    marker = Line2D([x], [y], marker="o", ms=7, color=GREY, mec="none", alpha=0, gid=POINT + text, zorder=9)
    marker.set_transform(ax.transData if transform is None else transform)
    marker.set_in_layout(False)  # of many points, the layout would measure each
    ax.add_artist(marker)


def draw_estimate(
    ax: Axes, y: float, values: Sequence[float], effect: Estimate, height: float, style: LineStyle
) -> None:
    """Draw the mean over seeds with its 95 % interval just above the height y, and a dot per seed below it."""
    side = math.copysign(height, ax.get_ylim()[0] - ax.get_ylim()[1])
    values = dots(values)
    if len(values) > 1:
        heights = y + side * (0.75 + 0.25 * np.resize([-1.0, 1.0, 0.0], len(values)))
        ax.plot(values, heights, ".", ms=3.4, color=style.colour, alpha=0.6, mec="none", zorder=2)
    draw_interval(ax, effect.mean, y - (side / 2 if len(values) > 1 else 0.0), effect, style, "x")


def draw_interval(ax: Axes, x: float, y: float, effect: Estimate, style: LineStyle, axis: str) -> None:
    """Draw a marker with the interval of its estimate along an axis; without an interval, the marker alone."""
    error = None if math.isnan(effect.low) else [[effect.mean - effect.low], [effect.high - effect.mean]]
    xerr, yerr = (error, None) if axis == "x" else (None, error)
    face = "white" if style.is_hollow else style.colour
    ax.errorbar(
        x, y, xerr=xerr, yerr=yerr, fmt=style.marker, ms=4.2, color=style.colour, mfc=face, capsize=2, lw=1.1, mew=0.9,
        zorder=3,
    )  # fmt: skip


def draw_references(study: Declaration, ax: Axes, axis: str, near: tuple[float, float], has_names: bool = True) -> None:
    """Draw lines at the losses of count models on the same evaluation windows that are near the values shown.

    Where the limits of the axis were set, a loss outside them has no line and no name.
    """
    if study.metric != "validation_loss":
        return
    first, last = near
    low, high = 2 * first - last, 2 * last - first
    if not (ax.get_autoscalex_on() if axis == "x" else ax.get_autoscaley_on()):
        ends = sorted(ax.get_xlim() if axis == "x" else ax.get_ylim())
        low, high = max(low, ends[0]), min(high, ends[1])
    for name, loss in study.references.items():
        if not low <= loss <= high:
            continue
        (ax.axvline if axis == "x" else ax.axhline)(loss, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
        if not has_names:
            continue
        if axis == "x":
            note = ax.annotate(
                name, (loss, 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points", ha="center"
            )
        else:
            note = ax.annotate(
                name, (1, loss), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center"
            )
        note.set(color=GREY, fontsize=SMALL, annotation_clip=False)


def set_log_scale(
    ax: Axes, axis: str, linear_until: float = 0.0, text: Callable[[float], str] = numbers.round_digits
) -> None:
    """Make an axis logarithmic, with plain text at its ticks; linear from 0 to a positive number if one is given."""
    scale = ax.set_xscale if axis == "x" else ax.set_yscale
    if linear_until:
        scale("symlog", linthresh=linear_until)
    else:
        scale("log")
    scaled_axis = ax.xaxis if axis == "x" else ax.yaxis
    low, high = sorted(scaled_axis.get_data_interval())
    if 0 < low <= high < 10 * low:
        scaled_axis.set_major_locator(MaxNLocator(3))  # powers of ten are one tick or none
    scaled_axis.set_major_formatter(lambda value, _: text(value))
    scaled_axis.set_minor_formatter(NullFormatter())


def set_whole_ticks(ax: Axes) -> None:
    """Have the ticks of the x axis, such as steps, at whole numbers."""
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def has_wide_range(values: Sequence[float], ratio: float = 300.0) -> bool:
    """True if the values are positive and a logarithmic axis shows them better."""
    return bool(values) and min(values) > 0 and max(values) > ratio * min(values)


def break_long_labels(figure: Figure) -> bool:
    """Break the labels of axes that reach beyond a figure into lines; return True if there are any."""
    is_changed = False
    for axes in figure.axes:
        for label, side in ((axes.xaxis.label, 0), (axes.yaxis.label, 1)):
            first, last = label.get_window_extent().get_points()[:, side]
            size = figure.bbox.get_points()[1, side]
            text = label.get_text()
            if text and (first < 0 or last > size):
                room = max(0.0, 2 * min((first + last) / 2, size - (first + last) / 2))
                longest = max(len(line) for line in text.splitlines())
                label.set_text("\n".join(wrap(text, max(8, int(longest * room / (last - first)) - 1))))
                is_changed |= label.get_text() != text
    return is_changed


def draw_panels(
    number: int, columns: int, width: float, height: float, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure of a size in inches, and its panels, row by row in so many columns."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(-(-number // columns), columns, sharex=sharex, sharey=sharey, squeeze=False)
    for ax in grid.flat[number:]:
        ax.remove()
    return figure, list(grid.flat[:number])


def legend_columns(names: Sequence[str], width: float) -> int:
    """Number of columns of a legend of these names, in a figure of a width in inches."""
    return min(len(names), max(1, int(width * 16 / (8 + max(map(len, names))))))


def legend_height(names: Sequence[str], width: float) -> float:
    """Inches of the rows of a legend."""
    return 0.13 * -(-len(names) // legend_columns(names, width))


def add_legend(figure: Figure, axes: Sequence[Axes], names: Sequence[str], title: str = "") -> None:
    """Add one legend below all panels, in the order of names."""
    handles = {str(line.get_label()): line for ax in axes for line in ax.get_lines()}
    shown = [name for name in names if name in handles]
    columns = legend_columns(names, figure.get_figwidth())
    figure.legend([handles[name] for name in shown], shown, title=title, loc="outside lower center", ncols=columns,
                  frameon=False, handlelength=2.6)  # fmt: skip


def wrap(text: str, characters: int) -> list[str]:
    """Lines of a text of at most so many characters."""
    return textwrap.wrap(text, characters) or [""]
