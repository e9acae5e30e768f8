"""Figures of a report as files (SVG, PNG and PDF), and as SVG for a page at two widths."""

import functools
import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from flaxformer.analysis.analysis import MOST_DRAWN, Analysis
from flaxformer.report import costs, heads, maps
from flaxformer.report.claims_figure import claims_figure
from flaxformer.report.curves_figure import curves_figure
from flaxformer.report.drawing import COLUMN, PAGE, POINT, STYLE
from flaxformer.report.heads_figure import attention_figure, heads_figure
from flaxformer.report.html import PageFigure
from flaxformer.report.joint_law_figure import joint_law_figure
from flaxformer.report.lens_figure import lens_figure
from flaxformer.report.scaling_figure import scaling_figure
from flaxformer.report.scores_figure import arms_figure, quantities_figure
from flaxformer.report.sweep_figure import sweep_figure
from flaxformer.report.texts import write_printable
from flaxformer.system.files import make_folder, write_atomically

METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}
"""Formats, with the metadata of the time of creation left out: equal results give equal files."""
DrawFigure = Callable[[float], Figure | None]
"""From a width in inches to a figure; None if there is nothing to draw."""


def draw(analysis: Analysis, folder: Path) -> dict[str, PageFigure]:
    """Write every figure in every format at the width of a column; return each by its name, the main one first."""
    with mpl.rc_context(STYLE):
        drawn = {}
        for name, make in _figures(analysis).items():
            if (narrow := make(COLUMN)) is not None and (wide := make(PAGE)) is not None:
                drawn[name] = PageFigure(save(narrow, folder, name), _svg(wide))
        return drawn


def _figures(analysis: Analysis) -> dict[str, DrawFigure]:
    """The figures that the analysis has room and reason for."""
    found: dict[str, DrawFigure] = {"claims": lambda width: claims_figure(analysis, width)}
    for i, sweep in enumerate(analysis.sweeps):
        found[f"sweep{i + 1 if i else ''}"] = functools.partial(sweep_figure, analysis, sweep)
    if analysis.scaling is not None:
        found["scaling"] = lambda width: scaling_figure(analysis, width)
        found["joint_law"] = lambda width: joint_law_figure(analysis, width)
    if grids := heads.head_grids(analysis):
        found["heads"] = functools.partial(heads_figure, grids)
    if curves := heads.lens_curves(analysis):
        found["lens"] = functools.partial(lens_figure, curves, analysis.study.unit)
    for i, own in enumerate(maps.drawn_maps(analysis).values()):
        found[f"maps{i + 1 if i else ''}"] = functools.partial(
            attention_figure, own, is_ranked=maps.is_ranked(analysis)
        )
    if len(analysis.arms) > MOST_DRAWN:
        return found
    found["curves"] = lambda width: curves_figure(analysis, width)
    if "FLOPs" in costs.differing(analysis) or analysis.study.compare:
        found["compute"] = lambda width: curves_figure(analysis, width, "compute")
    if not analysis.sweeps:
        found["arms"] = lambda width: arms_figure(analysis, width)
    if not analysis.arms and not analysis.claims:
        found["quantities"] = lambda width: quantities_figure(analysis, width)
    return found


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write one figure in every format; return its SVG text."""
    make_folder(folder)
    text = _svg(figure)
    write_printable(folder / f"{name}.svg", text)
    for artist in figure.findobj(lambda artist: (artist.get_gid() or "").startswith(POINT)):
        artist.set_visible(False)  # only an SVG can show their text
    for kind, metadata in METADATA.items():
        if kind != "svg":
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=300, metadata=metadata)
            write_atomically(folder / f"{name}.{kind}", buffer.getvalue())
    return text


def _svg(figure: Figure) -> str:
    """A figure as SVG whose points show their text under the pointer."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # laid out once, for all formats; under "none", each would be drawn twice
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=METADATA["svg"])
    return re.sub(rf'<g id="{POINT}([^"]*)">', r'<g class="point"><title>\1</title>', buffer.getvalue().decode())
