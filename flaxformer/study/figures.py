"""The figures of a report, drawn from an analysis: arms, claims, curves."""

import io
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.study.analysis import Analysis, ArmSummary
from flaxformer.study.statistics import estimate
from flaxformer.study.store import write_atomically

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flaxformer",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
}
COLOURS = ["#3b6fb6", "#d1662b", "#3f9361", "#8f5fa8", "#b8902f", "#4ba3b0", "#b5485d", "#7a7a7a"]
VERDICT_COLOURS = {"supported": "#2f7d4f", "refuted": "#b23b3b", "inconclusive": "#8a6d1f"}
FORMATS = ("svg", "png", "pdf")


def _colour_axis(analysis: Analysis) -> str | None:
    """The first axis gives the colours."""
    axes = analysis.study["axes"]
    return axes[0]["name"] if axes else None


def _colour(analysis: Analysis, arm: ArmSummary) -> str:
    name = _colour_axis(analysis)
    order = next(axis["labels"] for axis in analysis.study["axes"] if axis["name"] == name) if name else []
    label = arm.labels[name] if name else ""
    return COLOURS[(order.index(label) if label in order else len(order)) % len(COLOURS)]


def _metric(analysis: Analysis) -> str:
    """The metric's name, with its unit."""
    metric, unit = analysis.study["metric"].replace("_", " "), analysis.study["unit"].removeprefix("of ")
    return metric if unit == "accuracy" else f"{metric} ({unit})"


def _references(analysis: Analysis, ax: Axes, vertical: bool) -> None:
    """Lines at what count models reach on the same evaluation windows."""
    if analysis.study["metric"] != "validation_loss":
        return
    for name, loss in analysis.study["references"].items():
        (ax.axvline if vertical else ax.axhline)(loss, color="#999999", lw=0.8, ls=(0, (4, 3)), zorder=0)
        place = (
            {"xy": (loss, 1), "xycoords": ("data", "axes fraction"), "xytext": (2, 1)}
            if vertical
            else {"xy": (1, loss), "xycoords": ("axes fraction", "data"), "xytext": (2, -3)}
        )
        ax.annotate(
            f"{name} {loss:.2f}",
            textcoords="offset points",
            color="#777777",
            fontsize=7.5,
            annotation_clip=False,
            **place,
        )


def arms_figure(analysis: Analysis) -> Figure:
    """Every arm: one dot a seed, and the mean with its 95 % interval."""
    shown = [arm for arm in analysis.arms if arm.estimate.n]
    figure = Figure(figsize=(7.2, 1.1 + 0.34 * max(1, len(shown))), layout="constrained")
    ax = figure.subplots()
    for row, arm in enumerate(shown):
        colour, values = _colour(analysis, arm), [score for score in arm.scores if score is not None]
        jitter = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else [0.0]
        ax.plot(values, row + np.asarray(jitter), "o", ms=3, color=colour, alpha=0.35, mec="none")
        effect = arm.estimate
        error = None if math.isnan(effect.low) else [[effect.mean - effect.low], [effect.high - effect.mean]]
        ax.errorbar(effect.mean, row, xerr=error, fmt="D", ms=4.5, color=colour, capsize=3, lw=1.4)
    ax.set_yticks(range(len(shown)), [" · ".join(arm.labels.values()) or "baseline" for arm in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel(_metric(analysis))
    ax.set_ylabel(" · ".join(axis["name"] for axis in analysis.study["axes"]))
    ax.grid(axis="x", color="#eeeeee", zorder=0)
    ax.set_axisbelow(True)
    _references(analysis, ax, vertical=True)
    return figure


def claims_figure(analysis: Analysis) -> Figure | None:
    """Every declared claim: its effect at each seed, and the mean with its 95 % interval."""
    judged = [claim for claim in analysis.claims if claim.differences]
    if not judged:
        return None
    figure = Figure(figsize=(7.2, 0.9 + 0.62 * len(judged)), layout="constrained")
    ax = figure.subplots()
    for row, claim in enumerate(judged):
        effect, colour = claim.judgement.effect, VERDICT_COLOURS[claim.judgement.verdict]
        ax.plot(claim.differences, [row] * effect.n, "o", ms=3, color=colour, alpha=0.35, mec="none")
        error = None if math.isnan(effect.low) else [[effect.mean - effect.low], [effect.high - effect.mean]]
        ax.errorbar(effect.mean, row, xerr=error, fmt="D", ms=4.5, color=colour, capsize=3, lw=1.4)
        bounds = [-claim.within, claim.within] if claim.within is not None else [claim.by]
        ax.plot(bounds, [row] * len(bounds), "|", ms=16, color="#555555")
        ax.annotate(
            f"{claim.text}: {claim.judgement.verdict}",
            (0, row - 0.32),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            color=colour,
        )
    ax.axvline(0, color="#999999", lw=0.8, zorder=0)
    ax.set_yticks([])
    ax.set_ylim(len(judged) - 0.5, -0.7)
    ax.set_xlabel("effect, positive as claimed; | marks what is claimed, or the margin of equality")
    return figure


def curves_figure(analysis: Analysis) -> Figure:
    """The metric during training: mean over seeds, and pointwise 95 % intervals, a panel a level of the first axis."""
    name, metric = _colour_axis(analysis), analysis.study["metric"]
    panels: dict[str, list[ArmSummary]] = {}
    for arm in analysis.arms:
        if any(arm.rows):
            panels.setdefault(arm.labels[name] if name else "", []).append(arm)
    figure = Figure(figsize=(7.2, 3.5), layout="constrained")
    grid = figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)[0]
    handles: dict[str, str] = {}
    for ax, (title, arms) in zip(grid, panels.items(), strict=False):
        for arm in arms:
            rest = " · ".join(label for axis, label in arm.labels.items() if axis != name) or "baseline"
            colour = handles.setdefault(rest, COLOURS[len(handles) % len(COLOURS)])
            rows = [row for row in arm.rows if row is not None and row["status"] == "done"]
            if not rows:
                continue
            points = [estimate(values) for values in zip(*(row[f"{metric}_curve"] for row in rows), strict=True)]
            steps = rows[0]["evaluated_at"]
            ax.plot(steps, [point.mean for point in points], color=colour, lw=1.3, label=rest)
            if len(rows) > 1:
                ax.fill_between(
                    steps, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.15, lw=0
                )
        ax.set_title(f"{name} {title}" if name else "")
        ax.set_xlabel("step")
        _references(analysis, ax, vertical=False)
    grid[0].set_ylabel(_metric(analysis))
    if metric == "validation_loss":
        finals = [row[metric] for row in analysis.rows if row["status"] == "done"]
        if finals:  # not the steep first steps
            shown = [*finals, *analysis.study["references"].values()]
            low, high = min(shown), max(shown)
            grid[0].set_ylim(low - 0.1, high + 0.6 * (high - low) + 0.2)
    lines = {line.get_label(): line for ax in grid for line in ax.get_lines() if line.get_label() in handles}
    if lines:
        others = " · ".join(axis["name"] for axis in analysis.study["axes"] if axis["name"] != name)
        place: Any = {"loc": "outside lower center", "ncols": min(6, len(lines)), "frameon": False}
        figure.legend(lines.values(), lines.keys(), title=others, fontsize=7.5, title_fontsize=7.5, **place)
    return figure


def draw(analysis: Analysis, folder: Path) -> dict[str, str]:
    """Write every figure as SVG, PNG and PDF; returns each one's SVG text by name."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with mpl.rc_context(STYLE):
        figures = {"claims": claims_figure(analysis)}
        if analysis.rows:
            figures |= {"arms": arms_figure(analysis), "curves": curves_figure(analysis)}
        for name, figure in figures.items():
            if figure is None:
                continue
            for kind in FORMATS:
                buffer = io.BytesIO()
                stamp = {"CreationDate": None} if kind == "pdf" else {"Date": None} if kind == "svg" else {}
                figure.savefig(buffer, format=kind, dpi=160, metadata=stamp)
                write_atomically(folder / f"{name}.{kind}", buffer.getvalue())
                if kind == "svg":
                    drawn[name] = buffer.getvalue().decode()
    return drawn
