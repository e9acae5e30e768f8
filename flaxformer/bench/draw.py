"""Figure of the results of a benchmark."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from flaxformer.bench.declare import Benchmark
from flaxformer.bench.results import Interval, Measurement, ResultLine, lines, place
from flaxformer.bench.show import heading, number
from flaxformer.report.colours import GREY
from flaxformer.report.drawing import PAGE, STYLE, style_of
from flaxformer.system.files import make_folder, write_atomically

ACROSS = 4
"""Panels per row."""


def draw(path: Path, benchmark: Benchmark, measurements: Sequence[Measurement]) -> None:
    """Write the compared number, its median and range, as SVG and PNG.

    If the benchmark has an option `along`, the figure plots the number against it on logarithmic axes, with one panel
    per combination of the other options; otherwise it has one line per way and point.
    """
    compared = [line for line in lines(benchmark, measurements) if line.compared]
    with matplotlib.rc_context(STYLE):
        figure = (_along if benchmark.along in benchmark.varied_options else _dots)(benchmark, compared)
        figure.suptitle(benchmark.question, fontsize=7)
        make_folder(path.parent)
        for kind in ("svg", "png"):
            buffer, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
            figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
            write_atomically(path.with_suffix(f".{kind}"), buffer.getvalue())


def _whiskers(intervals: Sequence[Interval]) -> list[list[float]]:
    return [
        [interval.median - interval.low for interval in intervals],
        [interval.high - interval.median for interval in intervals],
    ]


def _along(benchmark: Benchmark, result_lines: Sequence[ResultLine]) -> Figure:
    along, styles = benchmark.along, {way.name: style_of(i) for i, way in enumerate(benchmark.ways)}
    panels: dict[str, dict[str, list[ResultLine]]] = {}
    for line in result_lines:
        panel = ", ".join(f"{name} {line.point[name]}" for name in benchmark.varied_options if name != along)
        panels.setdefault(panel, {}).setdefault(line.way, []).append(line)
    across, down = min(ACROSS, len(panels)) or 1, math.ceil(len(panels) / ACROSS) or 1
    figure = Figure(figsize=(PAGE, 0.6 + 1.8 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for axes, (panel, curves) in zip(grid, panels.items(), strict=False):
        for way, curve in curves.items():
            intervals, style = [line.compared for line in curve if line.compared], styles[way]
            x, middle = [line.point[along] for line in curve], [interval.median for interval in intervals]
            bars = _whiskers(intervals)
            axes.errorbar(x, middle, bars, fmt=style.marker, ls=style.dashes, color=style.colour, ms=3, capsize=2)
        ticks = sorted({line.point[along] for curve in curves.values() for line in curve})
        axes.set(xscale="log", yscale="log", title=panel, xlabel=along.replace("_", " "))
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in list(figure.axes)[len(panels) :]:
        axes.remove()
    for axes in list(figure.axes)[::across]:
        axes.set_ylabel(heading(benchmark))
    shown = [way for way in styles if any(line.way == way for line in result_lines)]
    handles = [Line2D([], [], color=s.colour, marker=s.marker, ls=s.dashes, ms=3) for s in map(styles.get, shown) if s]
    figure.legend(handles, shown, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _dots(benchmark: Benchmark, result_lines: Sequence[ResultLine]) -> Figure:
    colours = {"ours": style_of(0).colour, "peer": style_of(1).colour, "limit": GREY}
    figure = Figure(figsize=(PAGE, 0.7 + 0.2 * len(result_lines)), layout="constrained")
    axes = figure.subplots()
    for y, line in enumerate(result_lines):
        if interval := line.compared:
            colour = colours[benchmark.way(line.way).role]
            axes.errorbar(interval.median, y, xerr=_whiskers([interval]), fmt="o", color=colour, ms=4, capsize=2)
    names = [", ".join(filter(None, [line.way, place(benchmark, line.point)])) for line in result_lines]
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5), xlabel=heading(benchmark))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.grid(axis="x")
    return figure
