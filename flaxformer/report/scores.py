"""The figures of the runs themselves: arms, quantities, and learning curves."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.report import phrasing
from flaxformer.report.drawing import COLUMN, PAGE, LineStyle, dots_and_mean, is_wide_range, references, style_of
from flaxformer.study.analysis import Analysis, ArmSummary
from flaxformer.study.statistics import Estimate, estimate

SHORT = 24
"""Characters of a label that a narrow figure has room for."""
POINTS = 9
"""Most points of a curve that get a marker each."""


def arms_figure(analysis: Analysis) -> Figure | None:
    """Every arm; arms that differ in the first axis alone share a style."""
    shown = [arm for arm in analysis.arms if arm.estimate.n]
    styles = _styles(analysis)
    axes = " · ".join(axis["name"] for axis in analysis.study["axes"])
    figure = _dots(shown, [styles[_rest(analysis, arm)] for arm in shown], phrasing.metric(analysis.study), axes)
    if figure:
        own = _scores(shown)
        references(analysis, figure.axes[0], "x", (min(own), max(own)))
    return figure


def quantities_figure(analysis: Analysis) -> Figure | None:
    """Every measured number, for a probe that claims nothing of them."""
    shown = [one for one in analysis.quantities if one.estimate.n]
    return _dots(shown, [style_of(0)] * len(shown), analysis.study["unit"] or "value", "")


def _scores(arms: list[ArmSummary]) -> list[float]:
    return [score for arm in arms for score in arm.scores if score is not None]


def _dots(shown: list[ArmSummary], styles: list[LineStyle], xlabel: str, ylabel: str) -> Figure | None:
    """A row for each arm or quantity: seeds, mean and interval."""
    if not shown:
        return None
    names = [phrasing.arm(arm.labels) for arm in shown]
    width = COLUMN if max(map(len, names)) <= SHORT else PAGE
    figure = Figure(figsize=(width, 0.62 + 0.17 * len(shown)), layout="constrained")
    ax = figure.subplots()
    ax.set_ylim(len(shown) - 0.4, -0.6)
    for row, (arm, style) in enumerate(zip(shown, styles, strict=True)):
        dots_and_mean(ax, row, [s for s in arm.scores if s is not None], arm.estimate, 0.3, style)
    if is_wide_range(_scores(shown)):
        ax.set_xscale("log")
    ax.set_yticks(range(len(shown)), names)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(axis="both")
    return figure


def _first(analysis: Analysis) -> str | None:
    """The axis whose levels have a panel each: the first, where there are more."""
    axes = analysis.study["axes"]
    return axes[0]["name"] if len(axes) > 1 else None


def _rest(analysis: Analysis, arm: ArmSummary) -> str:
    """An arm by its levels on all other axes."""
    return phrasing.arm({axis: label for axis, label in arm.labels.items() if axis != _first(analysis)})


def _styles(analysis: Analysis) -> dict[str, LineStyle]:
    names = dict.fromkeys(_rest(analysis, arm) for arm in analysis.arms)
    return {name: style_of(i) for i, name in enumerate(names)}


def curves_figure(analysis: Analysis) -> Figure | None:
    """The metric during training: means over seeds, and pointwise 95 % intervals, a panel a level of the first axis."""
    name, metric, styles = _first(analysis), analysis.study["metric"], _styles(analysis)
    panels: dict[str, dict[str, tuple[list[int], list[Estimate]]]] = {}
    for arm in analysis.arms:
        rows = [row for row in arm.rows if row is not None and row["status"] == "done" and f"{metric}_curve" in row]
        if rows:
            points = [estimate(values) for values in zip(*(row[f"{metric}_curve"] for row in rows), strict=True)]
            panel = panels.setdefault(arm.labels[name] if name else "", {})
            panel[_rest(analysis, arm)] = rows[0]["evaluated_at"], points
    if not panels:
        return None
    columns = min(len(panels), 2 if len(panels) in (1, 2, 4) else 3)
    lines, used = -(-len(panels) // columns), [one for one in styles if any(one in panel for panel in panels.values())]
    width = COLUMN if columns < 3 else PAGE
    across = min(len(used), max(1, int(width * 16 / (8 + max(map(len, used))))))
    legend = 0.13 * (-(-len(used) // across)) + 0.2 if len(used) > 1 else 0.0
    figure = Figure(figsize=(width, 1.75 * lines + legend + 0.1), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat[len(panels) :]:
        ax.remove()
    for i, (ax, (title, curves)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        for one, (steps, points) in curves.items():
            _curve(ax, steps, points, styles[one], one)
        ax.set_title(f"{name} {title}" if name else "")
        ax.set_xlabel("step" if i + columns >= len(panels) else "")
        ax.set_ylabel(phrasing.metric(analysis.study) if i % columns == 0 else "")
        ax.tick_params(labelbottom=i + columns >= len(panels))
    _limits(analysis, list(grid.flat[: len(panels)]), panels)
    if len(used) > 1:
        _legend(analysis, figure, list(grid.flat[: len(panels)]), across)
    return figure


def _curve(ax: Axes, steps: list[int], points: list[Estimate], style: LineStyle, label: str) -> None:
    every = -(-len(steps) // POINTS)
    drawn: Any = {"color": style.colour, "ls": style.dashes, "marker": style.marker, "ms": 2.6, "markevery": every}
    ax.plot(steps, [point.mean for point in points], label=label, **drawn)
    if points[0].n > 1:
        low, high = [point.low for point in points], [point.high for point in points]
        ax.fill_between(steps, low, high, color=style.colour, alpha=0.18, lw=0)


def _limits(analysis: Analysis, axes: list[Axes], panels: dict[str, Any]) -> None:
    """The end of training in view, rather than its steep first steps."""
    means = [point.mean for curves in panels.values() for _, points in curves.values() for point in points]
    last = [points[-1].mean for curves in panels.values() for _, points in curves.values()]
    low, high = min(last), max(last)
    if analysis.study["metric"] == "validation_loss":
        for i, ax in enumerate(axes):
            references(analysis, ax, "y", (low, high), named=i == len(axes) - 1)
        axes[0].set_ylim(min(means) - 0.1, min(max(means), high + 0.6 * (high - low) + 0.3) + 0.05)
    elif is_wide_range(means):
        axes[0].set_yscale("log")


def _legend(analysis: Analysis, figure: Figure, axes: list[Axes], columns: int) -> None:
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    order = [name for name in _styles(analysis) if name in handles]
    title = " · ".join(axis["name"] for axis in analysis.study["axes"] if axis["name"] != _first(analysis))
    place: Any = {"loc": "outside lower center", "ncols": columns, "frameon": False, "handlelength": 2.6}
    figure.legend([handles[name] for name in order], order, title=title, **place)
