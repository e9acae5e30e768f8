"""Figure of the effects of single changes (a forest plot): each within the whole and alone, with intervals, by size."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from flaxformer.analysis.analysis import MOST_DRAWN, Analysis
from flaxformer.analysis.effects import Change, Effect
from flaxformer.report import phrasing
from flaxformer.report.colours import GREY
from flaxformer.report.drawing import COLUMN, LineStyle, add_hover_text, draw_interval, style_of, wrap
from flaxformer.report.scores_figure import MARGIN, SHORT
from flaxformer.study.halving import direction_of

ROW, LEGEND, OFFSET = 0.24, 0.16, 0.17
"""Inches of a row and of the legend; distance of the two effects of a change from its middle, in rows."""
CHARACTERS = 40
"""Characters of a line below a figure as wide as a column."""


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
    figure = Figure(figsize=(width, MARGIN + LEGEND + ROW * len(shown)), layout="constrained")
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
    label = f"effect on the {phrasing.metric(analysis.study)}{', positive where good' if is_good else ''}"
    ax.set_xlabel("\n".join(wrap(label, int(CHARACTERS * width / COLUMN))))
    ax.grid(axis="both")
    if any(len(effects_of(change)) > 1 for change in shown):
        marks = [
            ax.plot([], [], s.marker, color=colour, mfc="white" if s.is_hollow else colour)[0] for s in styles.values()
        ]
        figure.legend(marks, list(styles), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _heights(row: int, n: int) -> Sequence[float]:
    return [float(row)] if n == 1 else [row - OFFSET, row + OFFSET]
