"""Figures of heads and depth: numbers and attention weights per head, and the loss after each block (logit lens)."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from flaxformer.report import phrasing
from flaxformer.report.colours import COLOURS, GREY
from flaxformer.report.drawing import COLUMN, SMALL, add_hover_text, add_legend, draw_interval, draw_panels, style_of
from flaxformer.report.heads import HeadGrid
from flaxformer.statistics.estimates import Estimate

SHADES = 12
"""Number of opacities of a cell; a colour with an opacity is right on a light and on a dark page."""
INK = 0.55
"""Opacity from which the text on a cell is white."""
MOST_ARMS = 8
"""Largest number of arms that are drawn."""


def heads_figure(grids: Sequence[HeadGrid], width: float = COLUMN) -> Figure | None:
    """Draw a grid of layers and heads per quantity: the mean, half the width of its interval, and a shade.

    The shade is the mean divided by the largest of the quantity; negative means are white.
    """
    if not grids:
        return None
    columns = 1 if width == COLUMN else min(len(grids), 2)
    rows = -(-len(grids) // columns)
    tallest = max(len(grid.layers) for grid in grids)
    figure, panels = draw_panels(len(grids), columns, width, rows * (0.55 + 0.3 * tallest))
    for index, (ax, grid) in enumerate(zip(panels, grids, strict=True)):
        _draw_grid(ax, grid)
        is_last = index + columns >= len(grids)
        ax.set_xlabel(("head, ranked in each seed" if grid.is_ranked else "head") if is_last else "")
    return figure


def _draw_grid(ax: Axes, grid: HeadGrid) -> None:
    means = [[estimate.mean for estimate in estimates] for estimates in grid.layers.values()]
    largest = max((mean for layer_means in means for mean in layer_means), default=0.0)
    texts = grid.texts()
    for row, heads in enumerate(means):
        for column, mean in enumerate(heads):
            shade = max(0.0, mean / largest) if largest > 0 else 0.0
            _fill(ax, [(column, row)], shade)
            text = texts[row][column]
            colour = "white" if shade > INK else "#000000"
            ax.text(column, row, text.replace(" ± ", "\n±"), ha="center", va="center", fontsize=SMALL - 1, color=colour)
            place = "rank" if grid.is_ranked else "head"
            add_hover_text(ax, column, row, f"{list(grid.layers)[row]}, {place} {column + grid.is_ranked}: {text}")
    widest = max(map(len, means))
    _set_frame(ax, widest, len(means))
    ax.set_xticks(range(widest), [str(head + grid.is_ranked) for head in range(widest)])
    ax.set_yticks(range(len(means)), [_layer_name(path) for path in grid.layers])
    ax.set_title(grid.quantity.replace("_", " "))


def attention_figure(
    maps: Mapping[str, np.ndarray],
    width: float = COLUMN,
    tokens: Sequence[str] | None = None,
    *,
    is_ranked: bool = False,
) -> Figure | None:
    """Draw attention weights: a row of panels per layer, a panel per head, queries from top to bottom.

    Args:
      maps: weights [N, T, S] of one sequence, or a mean over sequences, by the path of the point, as
        `interpret.attention_maps` gives them for a batch.
      width: inches.
      tokens: texts of the tokens, as labels of queries and keys; None for positions.
      is_ranked: True if the heads are in an order of their own in each seed.

    Raises:
      ValueError: weights of another number of axes.
    """
    for path, weights in maps.items():
        if weights.ndim != 3:
            raise ValueError(f"weights of {path} have shape {list(weights.shape)}; expected [heads, queries, keys]")
    if not maps:
        return None
    columns = max(len(weights) for weights in maps.values())
    side = (width - 0.45) / columns
    figure = Figure(figsize=(width, (side + 0.22) * len(maps) + 0.25), layout="constrained")
    panels = figure.subplots(len(maps), columns, squeeze=False)
    for row, (path, weights) in zip(panels, maps.items(), strict=True):
        for head, ax in enumerate(row):
            if head >= len(weights):
                ax.remove()
                continue
            _draw_map(ax, weights[head], tokens)
            ax.set_title(f"rank {head + 1}" if is_ranked else f"head {head}")
            ax.set_ylabel(f"{_layer_name(path)}\nquery" if head == 0 else "")
            ax.tick_params(labelleft=head == 0)
            ax.set_xlabel("key" if path == list(maps)[-1] else "")
    return figure


def _draw_map(ax: Axes, weights: np.ndarray, tokens: Sequence[str] | None) -> None:
    """Draw the weights of one head, all cells of a shade as one outline."""
    shades = np.rint(np.clip(weights, 0, 1) * SHADES).astype(int)
    for shade in range(1, SHADES + 1):
        cells = [(int(key), int(query)) for query, key in np.argwhere(shades == shade)]
        if cells:
            _fill(ax, cells, shade / SHADES)
    queries, keys = weights.shape
    _set_frame(ax, keys, queries)
    for ticks, labels, size in (
        (ax.set_xticks, ax.set_xticklabels, keys),
        (ax.set_yticks, ax.set_yticklabels, queries),
    ):
        shown = range(size) if tokens else range(0, size, max(1, size // 4))
        ticks(list(shown))
        labels([tokens[at] if tokens else str(at) for at in shown])
    if tokens:
        ax.tick_params(labelsize=SMALL - 1.5, length=0)


def _fill(ax: Axes, cells: Sequence[tuple[int, int]], opacity: float) -> None:
    """Fill cells of side 1 with one colour and opacity."""
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)])
    outline = Outline(
        np.concatenate([corners + cell for cell in cells]),
        [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(cells),
    )
    ax.add_patch(PathPatch(outline, facecolor=COLOURS[0], alpha=opacity, lw=0))


def _set_frame(ax: Axes, columns: int, rows: int) -> None:
    """Set the limits of a grid of cells, the first row at the top, with a thin frame."""
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    ax.spines[:].set(visible=True, color=GREY, linewidth=0.5)


def _layer_name(path: str) -> str:
    """Return a layer with its number from 0, such as "layer 1", and its branch if it is not a self-attention."""
    match = re.search(r"(encoder/)?blocks/(\d+)/(\w+)", path)
    if match is None:
        return path
    branch = "" if match[3] == "attention" else f" {match[3].replace('_', '-')}"
    return f"{'encoder ' if match[1] else ''}layer {match[2]}{branch}"


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
    figure, [ax] = draw_panels(1, 1, width, 1.9 if width == COLUMN else 2.4)
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
        add_legend(figure, [ax], list(shown))
    return figure
