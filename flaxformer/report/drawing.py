"""Style of all figures: sizes of a paper's columns, and colours that differ in grey too."""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from flaxformer.study.analysis import Analysis
from flaxformer.study.statistics import Estimate

COLUMN, PAGE = 3.3, 6.9
"""Inches: the width of one column of a two-column paper, and of both."""
SMALL = 6.0
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flaxformer",
    "pdf.fonttype": 42,  # fonts that publishers accept
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 7,
    "text.parse_math": False,  # labels are the author's own words
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
GREY, SHADE = "#777777", "#e3e3e3"
COLOURS = ["#004488", "#cc8f1e", "#bb5566", "#000000", "#66a3d9", "#2f7d4f", "#a05fa8", "#8c8c8c"]
MARKERS = "os^DvPX"
DASHES: list[Any] = ["-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)), (0, (2, 1))]


@dataclasses.dataclass(frozen=True)
class LineStyle:
    """Style of one of many: a colour and, where there is none, a marker and dashes."""

    colour: str
    marker: str
    dashes: Any = "-"
    hollow: bool = False


def style_of(index: int) -> LineStyle:
    """Return the style of the index-th series; the cycles have coprime lengths, so that 280 are different."""
    return LineStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])


def dots_and_mean(ax: Axes, y: float, values: list[float], effect: Estimate, height: float, style: LineStyle) -> None:
    """The mean over seeds with its 95 % interval, just above the height y, and every seed a dot below it."""
    side = math.copysign(height, ax.get_ylim()[0] - ax.get_ylim()[1])
    if len(values) > 1:
        heights = y + side * (0.75 + 0.25 * np.resize([-1.0, 1.0, 0.0], len(values)))
        ax.plot(values, heights, ".", ms=3.4, color=style.colour, alpha=0.6, mec="none", zorder=2)
    error = None if math.isnan(effect.low) else [[effect.mean - effect.low], [effect.high - effect.mean]]
    face: Any = {"mfc": "white"} if style.hollow else {}
    fmt: Any = {"fmt": style.marker, "ms": 4.2, "color": style.colour, "capsize": 2, "lw": 1.1, "mew": 0.9, "zorder": 3}
    ax.errorbar(effect.mean, y - (side / 2 if len(values) > 1 else 0.0), xerr=error, **fmt, **face)


def references(analysis: Analysis, ax: Axes, axis: str, near: tuple[float, float], named: bool = True) -> None:
    """Lines at what count models reach on the same evaluation windows, where that is near what is shown."""
    if analysis.study["metric"] != "validation_loss":
        return
    low, high = near
    for name, loss in analysis.study["references"].items():
        if not 2 * low - high <= loss <= 2 * high - low:
            continue
        (ax.axvline if axis == "x" else ax.axhline)(loss, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
        place: Any = (
            {"xy": (loss, 1), "xycoords": ("data", "axes fraction"), "xytext": (0, 2), "ha": "center"}
            if axis == "x"
            else {"xy": (1, loss), "xycoords": ("axes fraction", "data"), "xytext": (2, 0), "va": "center"}
        )
        if named:
            ax.annotate(name, textcoords="offset points", color=GREY, fontsize=SMALL, annotation_clip=False, **place)


def is_wide_range(values: list[float]) -> bool:
    """True if a logarithmic axis shows them better."""
    return bool(values) and min(values) > 0 and max(values) > 300 * min(values)
