"""Figure of the claims: the effect at each seed, its mean with an interval, and the region where the claim holds."""

import dataclasses
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import phrasing, verdicts
from flaxformer.report.colours import GREY, SHADE, VERDICT_COLOURS
from flaxformer.report.drawing import (
    COLUMN,
    LineStyle,
    add_hover_text,
    draw_estimate,
    wrap,
)

STYLES = {
    "supported": LineStyle(VERDICT_COLOURS["supported"], "o"),
    "refuted": LineStyle(VERDICT_COLOURS["refuted"], "X"),
    "inconclusive": LineStyle(VERDICT_COLOURS["inconclusive"], "o", is_hollow=True),
}
"""Full circles, crosses and hollow circles, which differ in grey too."""
CHARACTERS = 60
"""Characters per line in a figure as wide as a column."""
LINE, DOTS, GAP, BELOW, SIDE = 0.125, 0.22, 0.05, 0.36, 0.12
"""Inches: height of a line of text, of a row of dots, between rows, of an axis with its label; margin on each side."""
NARROW_SPAN = 1e-4
"""Span of an axis, relative to its values, below which the tick labels are written with an offset."""
LARGEST_RATIO = 6
"""Largest ratio of the span of an axis to the span that its smallest claim needs."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Claims that share an axis."""

    label: str
    claims: list[JudgedClaim]
    characters: int

    @property
    def height(self) -> float:
        """Inches above the axis."""
        return sum(len(self.text(claim)) * LINE + DOTS + GAP for claim in self.claims)

    def text(self, claim: JudgedClaim) -> list[str]:
        """Lines of a claim with its verdict."""
        verdict = claim.judgement.verdict
        return wrap(f"{phrasing.MARKS[verdict]} {verdicts.qualified_verdict(claim)}: {claim.text}", self.characters)


def claims_figure(analysis: Analysis, width: float = COLUMN) -> Figure | None:
    """Every declared claim; claims of one unit share an axis, unless it would hide the smaller ones."""
    panels = _panels(analysis, int(CHARACTERS * width / COLUMN))
    if not panels:
        return None
    height = sum(panel.height + BELOW for panel in panels) + 0.03
    figure, top = Figure(figsize=(width, height)), height - 0.03
    for panel in panels:
        top -= panel.height
        place = (SIDE / width, top / height, 1 - 2 * SIDE / width, panel.height / height)
        _draw(figure.add_axes(place), panel)
        top -= BELOW
    return figure


def _panels(analysis: Analysis, characters: int) -> list[Panel]:
    """Group claims of one unit whose sizes one axis can show."""
    panels: list[list[JudgedClaim]] = []
    for claim in analysis.claims:
        if claim.differences:
            fitting = (panel for panel in panels if _kind(panel[0]) == _kind(claim) and _fit([*panel, claim]))
            if (panel := next(fitting, None)) is None:
                panels.append([claim])
            else:
                panel.append(claim)
    return [Panel(_label(panel), panel, characters) for panel in panels]


def _kind(claim: JudgedClaim) -> tuple[str, bool]:
    return claim.unit, phrasing.number_claimed(claim) is None


def _fit(claims: list[JudgedClaim]) -> bool:
    """True if one axis shows even the smallest of the claims."""
    lows, highs = zip(*map(_extent, claims), strict=True)
    return max(highs) - min(lows) <= LARGEST_RATIO * min(high - low for low, high in zip(lows, highs, strict=True))


def _label(claims: list[JudgedClaim]) -> str:
    """Label of an axis: the effect, or the name of the measured quantity."""
    named = {phrasing.arm(claim.terms[0][1]) for claim in claims}
    what = named.pop() if len(named) == 1 else "measured"
    what = "effect, positive as claimed" if phrasing.number_claimed(claims[0]) is None else what
    return f"{what} ({claims[0].unit.removeprefix('of ')})" if claims[0].unit else what


def _extent(claim: JudgedClaim) -> tuple[float, float]:
    """Smallest and largest value of the axis that a claim needs."""
    effect, paired = phrasing.measured_effect(claim), phrasing.number_claimed(claim) is None
    ends = [
        effect.mean,
        effect.low,
        effect.high,
        *phrasing.values(claim),
        *phrasing.region(claim),
        *([0.0] if paired else []),
    ]
    shown = [end for end in ends if math.isfinite(end)]
    low, high = min(shown), max(shown)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _draw(ax: Axes, panel: Panel) -> None:
    """Draw the claims from the top; heights are in inches."""
    low = min(_extent(claim)[0] for claim in panel.claims)
    high = max(_extent(claim)[1] for claim in panel.claims)
    ax.set_xlim(low, high)
    ax.set_ylim(panel.height, 0)
    y = 0.0
    for claim in panel.claims:
        for line in panel.text(claim):
            y += LINE
            colour = STYLES[claim.judgement.verdict].colour
            ax.text(0, y, line, transform=ax.get_yaxis_transform(), fontsize=6.5, color=colour, va="baseline")
        _draw_claim(ax, claim, y + GAP / 2 + DOTS / 2, DOTS / 2 - 0.01)
        y += DOTS + GAP
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=5)
    if high - low < NARROW_SPAN * max(abs(low), abs(high)):
        ax.ticklabel_format(axis="x", useOffset=True)
    ax.set_xlabel("\n".join(wrap(panel.label, panel.characters + 4)), labelpad=2)


def _draw_claim(ax: Axes, claim: JudgedClaim, middle: float, half: float) -> None:
    """Draw one claim around a height: the region where it holds, the zero line of an effect, and the estimate."""
    (left, right), (low, high) = phrasing.region(claim), ax.get_xlim()
    heights = [middle - half, middle + half]
    begin, end = max(left, low), min(right, high)
    if begin < end:
        ax.fill_betweenx(heights, begin, end, color=SHADE, lw=0, zorder=0)
    for bound in filter(math.isfinite, (left, right)):
        ax.plot([bound, bound], heights, color=GREY, lw=0.9, zorder=1)
    if phrasing.number_claimed(claim) is None:
        ax.plot([0, 0], heights, color=GREY, lw=0.6, ls=(0, (1, 2)), zorder=0)
    style, estimate = STYLES[claim.judgement.verdict], phrasing.measured_effect(claim)
    draw_estimate(ax, middle, phrasing.values(claim), estimate, half * 0.75, style)
    add_hover_text(ax, estimate.mean, middle, f"{claim.text}: {phrasing.finding(claim)}")
