"""Figures of estimates in rows: the scores of arms, the quantities of a probe, and the effects of single changes."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from flaxformer.analysis.analysis import MOST_DRAWN, Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.effects import Change, Effect
from flaxformer.report import phrasing
from flaxformer.report.colours import GREY
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    draw_estimate,
    draw_interval,
    draw_references,
    has_wide_range,
    set_log_scale,
    style_of,
    wrap,
)
from flaxformer.study.halving import direction_of
from flaxformer.system.wording import count_of

SHORT = 24
"""Characters of a line of a label in a figure as wide as a column."""
ROW, LINE, MARGIN = 0.17, 0.11, 0.62
"""Inches of a row with a label of one line, of each further line, and of the axis with its label."""
EFFECT_ROW, LEGEND, OFFSET = 0.24, 0.16, 0.17
"""Inches of a row and of the legend; distance of the two effects of a change from its middle, in rows."""
CHARACTERS = 40
"""Characters of a line below or above a figure as wide as a column."""
CHARACTER, FEW, FONT = 0.055, 5, 7
"""Inches of a character; characters of a label beside the rows that may exceed their height; points of the font."""


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
    is_beside = CHARACTER * len(ylabel) <= ROW * rows + CHARACTER * FEW  # upright; a longer one would be cut at the top
    above = [] if is_beside else wrap(ylabel, int(CHARACTERS * width / COLUMN))
    figure = Figure(figsize=(width, MARGIN + ROW * rows + LINE * len(above)), layout="constrained")
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
    ax.set_ylabel(ylabel if is_beside else "")
    if above:
        figure.suptitle("\n".join(above), x=0, ha="left", fontsize=FONT)
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


def effects_of(change: Change) -> list[tuple[str, Effect]]:
    """Return the effects of a change that have runs, with the name of each."""
    effects = [("within the whole", change.within), ("alone", change.alone)]
    return [(name, effect) for name, effect in effects if effect.metric.n]


def effects_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """A row for each change, the largest effect first."""
    shown = [change for change in analysis.changes if change.is_single and effects_of(change)]
    if not 0 < len(shown) <= MOST_DRAWN:
        return None
    colour = style_of(0).colour
    styles = {"within the whole": LineStyle(colour, "o"), "alone": LineStyle(colour, "o", is_hollow=True)}
    figure = Figure(figsize=(width, MARGIN + LEGEND + EFFECT_ROW * len(shown)), layout="constrained")
    ax = figure.subplots()
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.axvline(0, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for row, change in enumerate(shown):
        parts = effects_of(change)
        for (name, effect), y in zip(parts, _heights(row, len(parts)), strict=True):
            draw_interval(ax, effect.metric.mean, y, effect.metric, styles[name], "x")
            add_hover_text(ax, effect.metric.mean, y, f"{change.name} {name}: {phrasing.interval(effect.metric, '+')}")
    names = ["\n".join(wrap(change.name, int(SHORT * width / COLUMN))) for change in shown]
    ax.set_yticks(range(len(shown)), names)
    ax.tick_params(axis="y", length=0)
    is_good = direction_of(analysis.study.metric, analysis.study.goal) is not None
    ax.set_xlabel(f"effect on the {phrasing.metric(analysis.study)}{', positive where good' if is_good else ''}")
    ax.grid(axis="both")
    if any(len(effects_of(change)) > 1 for change in shown):
        marks = [
            ax.plot([], [], s.marker, color=colour, mfc="white" if s.is_hollow else colour)[0] for s in styles.values()
        ]
        figure.legend(marks, list(styles), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _heights(row: int, n: int) -> Sequence[float]:
    return [float(row)] if n == 1 else [row - OFFSET, row + OFFSET]
