"""A report's figures as files: SVG, PNG and PDF, in the order in which a reader wants them."""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from flaxformer.files import write_atomically
from flaxformer.report.drawing import STYLE
from flaxformer.report.effects import claims_figure
from flaxformer.report.scores import arms_figure, curves_figure, quantities_figure
from flaxformer.study.analysis import MOST_DRAWN, Analysis

STAMPS: dict[str, dict] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}
"""Metadata of the time of creation, left out: equal results are equal files."""


def draw(analysis: Analysis, folder: Path) -> dict[str, str]:
    """Write every figure in every format; returns each one's SVG text by name, the main one first."""
    with mpl.rc_context(STYLE):
        few = len(analysis.arms) <= MOST_DRAWN
        figures = {"claims": claims_figure(analysis), "arms": arms_figure(analysis) if few else None}
        if not any(figures.values()):
            figures["quantities"] = quantities_figure(analysis)
        figures["curves"] = curves_figure(analysis) if few else None
        return {name: save(figure, folder, name) for name, figure in figures.items() if figure is not None}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write one figure in every format; returns its SVG text."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # laid out once, for all formats; under "none", each would be drawn twice
    for kind, stamp in STAMPS.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=300, metadata=stamp)
        write_atomically(folder / f"{name}.{kind}", buffer.getvalue())
    return (folder / f"{name}.svg").read_text()
