"""The figure of the claims: what was measured at each seed, its mean, and where the claim would hold."""

import dataclasses
import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flaxformer.report import phrasing
from flaxformer.report.drawing import COLUMN, GREY, SHADE, LineStyle, dots_and_mean
from flaxformer.study.analysis import Analysis, JudgedClaim

LOOKS = {
    "supported": LineStyle("#00695c", "o"),
    "refuted": LineStyle("#b3391f", "X"),
    "inconclusive": LineStyle("#5c5c5c", "o", hollow=True),
}
"""Full circles, crosses and hollow circles, told apart in grey too."""
CHARACTERS, LINE, DOTS, GAP, BELOW = 60, 0.125, 0.22, 0.05, 0.36
"""Characters a line; inches of a line of text, of a row of dots, between rows, and of an axis with its label."""
SIDE = 0.12
TINY = 1e-4
"""A stretch of the axis, relative to where it is, whose tick labels would be too long to be written in full."""
WIDER = 6
"""Largest ratio of an axis's span to what its smallest claim needs."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Claims that share an axis."""

    label: str
    claims: list[JudgedClaim]

    @property
    def height(self) -> float:
        """Inches above the axis."""
        return sum(len(_text(claim)) * LINE + DOTS + GAP for claim in self.claims)


def claims_figure(analysis: Analysis) -> Figure | None:
    """Every declared claim; claims of one unit share an axis, unless it would hide the smaller ones."""
    panels = _panels(analysis)
    if not panels:
        return None
    height = sum(panel.height + BELOW for panel in panels) + 0.03
    figure, top = Figure(figsize=(COLUMN, height)), height - 0.03
    for panel in panels:
        top -= panel.height
        place = (SIDE / COLUMN, top / height, 1 - 2 * SIDE / COLUMN, panel.height / height)
        _draw(figure.add_axes(place), panel)
        top -= BELOW
    return figure


def _panels(analysis: Analysis) -> list[Panel]:
    """Claims with their likes: one unit, and sizes that an axis can show together."""
    panels: list[list[JudgedClaim]] = []
    for claim in analysis.claims:
        if claim.differences:
            near = (own for own in panels if _kind(own[0]) == _kind(claim) and _fit([*own, claim]))
            home = next(near, None)
            if home is None:
                panels.append([claim])
            else:
                home.append(claim)
    return [Panel(_label(own), own) for own in panels]


def _kind(claim: JudgedClaim) -> tuple[str, bool]:
    return claim.unit, phrasing.number_claimed(claim) is None


def _fit(claims: list[JudgedClaim]) -> bool:
    """True if one axis shows the smallest of them too."""
    lows, highs = zip(*map(_extent, claims), strict=True)
    return max(highs) - min(lows) <= WIDER * min(high - low for low, high in zip(lows, highs, strict=True))


def _label(claims: list[JudgedClaim]) -> str:
    """Return the label of an axis: the effect, or what is measured."""
    named = {phrasing.arm(claim.terms[0][1]) for claim in claims}
    what = named.pop() if len(named) == 1 else "measured"
    what = "effect, positive as claimed" if phrasing.number_claimed(claims[0]) is None else what
    return f"{what} ({claims[0].unit.removeprefix('of ')})" if claims[0].unit else what


def _extent(claim: JudgedClaim) -> tuple[float, float]:
    """The stretch of the axis that a claim needs."""
    effect, paired = phrasing.measured(claim), phrasing.number_claimed(claim) is None
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


def _text(claim: JudgedClaim) -> list[str]:
    verdict = claim.judgement.verdict
    return textwrap.wrap(f"{phrasing.MARKS[verdict]} {verdict}: {claim.text}", CHARACTERS)


def _draw(ax: Axes, panel: Panel) -> None:
    """Rows from the top, heights in inches."""
    low = min(_extent(claim)[0] for claim in panel.claims)
    high = max(_extent(claim)[1] for claim in panel.claims)
    ax.set_xlim(low, high)
    ax.set_ylim(panel.height, 0)
    y = 0.0
    for claim in panel.claims:
        for line in _text(claim):
            y += LINE
            colour = LOOKS[claim.judgement.verdict].colour
            ax.text(0, y, line, transform=ax.get_yaxis_transform(), fontsize=6.5, color=colour, va="baseline")
        middle, half = y + GAP / 2 + DOTS / 2, DOTS / 2 - 0.01
        left, right = phrasing.region(claim)
        begin, end = max(left, low), min(right, high)
        if begin < end:
            ax.fill_betweenx([middle - half, middle + half], begin, end, color=SHADE, lw=0, zorder=0)
        for bound in filter(math.isfinite, (left, right)):
            ax.plot([bound, bound], [middle - half, middle + half], color=GREY, lw=0.9, zorder=1)
        if phrasing.number_claimed(claim) is None:
            ax.plot([0, 0], [middle - half, middle + half], color=GREY, lw=0.6, ls=(0, (1, 2)), zorder=0)
        style = LOOKS[claim.judgement.verdict]
        dots_and_mean(ax, middle, phrasing.values(claim), phrasing.measured(claim), half * 0.75, style)
        y += DOTS + GAP
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=5)
    if high - low < TINY * max(abs(low), abs(high)):
        ax.ticklabel_format(axis="x", useOffset=True)
    ax.set_xlabel("\n".join(textwrap.wrap(panel.label, 64)), labelpad=2)
