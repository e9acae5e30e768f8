"""Figure of the logit lens: the loss of the residual stream after each block, with its interval over seeds."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from flaxformer.report import phrasing
from flaxformer.report.curves_figure import add_legend
from flaxformer.report.drawing import COLUMN, add_hover_text, draw_interval, style_of
from flaxformer.statistics.estimates import Estimate

MOST_ARMS = 8
"""Largest number of arms that are drawn."""


def lens_figure(curves: Mapping[str, Sequence[Estimate]], unit: str, width: float = COLUMN) -> Figure | None:
    """Draw the mean loss against the number of blocks, a line per arm.

    Args:
      curves: loss after 0, 1, … blocks, by the name of the arm.
      unit: unit of the loss.
      width: inches.
    """
    shown = dict(list(curves.items())[:MOST_ARMS])
    if not shown:
        return None
    figure = Figure(figsize=(width, 1.9 if width == COLUMN else 2.4), layout="constrained")
    ax = figure.subplots()
    for index, (name, points) in enumerate(shown.items()):
        style = style_of(index)
        ax.plot(range(len(points)), [point.mean for point in points], color=style.colour, ls=style.dashes, label=name)
        for depth, point in enumerate(points):
            draw_interval(ax, depth, point.mean, point, style, "y")
            add_hover_text(ax, depth, point.mean, f"{name}, {depth} blocks: {phrasing.interval(point)}")
    ax.set_xticks(range(max(map(len, shown.values()))))
    ax.set_xlabel("blocks before the final norm and the head")
    ax.set_ylabel(f"loss ({unit})" if unit else "loss")
    ax.grid(axis="y")
    if len(shown) > 1:
        add_legend(figure, [ax], list(shown), "", max(1, int(width * 16 / (8 + max(map(len, shown))))))
    return figure
