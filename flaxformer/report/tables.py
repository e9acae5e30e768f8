"""The tables of a report: what is in them, and their forms in Markdown and in LaTeX with booktabs rules."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from flaxformer.report import phrasing, tex
from flaxformer.report.numbers import exact, number, numbers, p_value
from flaxformer.study.analysis import Analysis, ArmSummary
from flaxformer.study.statistics import Estimate

LONG = 34
"""Characters from which a column of text is wrapped in LaTeX."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first `texts` columns are words, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int

    def is_text(self, column: int) -> bool:
        """True if a column is set flush left."""
        return column < self.texts


def markdown(table: Table) -> str:
    """A table in GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    rule = "|".join(" --- " if table.is_text(i) else " ---: " for i in range(len(table.header)))
    return "\n".join([line(table.header), f"|{rule}|", *map(line, table.rows)]) + "\n"


def latex(table: Table) -> str:
    """A `tabular` that needs the package booktabs; long columns of text are wrapped."""
    columns = [max(len(row[i]) for row in (table.header, *table.rows)) for i in range(len(table.header))]
    wrapped = [i for i, width in enumerate(columns) if table.is_text(i) and width > LONG]
    room = 0.9 - 0.012 * sum(width for i, width in enumerate(columns) if i not in wrapped)
    total = sum(min(columns[i], 80) for i in wrapped)
    form = ""
    for i, width in enumerate(columns):
        share = max(room, 0.3) * min(width, 80) / total if i in wrapped else 0
        form += f"p{{{share:.2f}\\linewidth}}" if i in wrapped else "l" if table.is_text(i) else "r"

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(tex.text, cells)) + r" \\"

    top = [r"\begin{tabular}{" + form + "}", r"\toprule", line(table.header), r"\midrule"]
    return "\n".join([*top, *map(line, table.rows), r"\bottomrule", r"\end{tabular}"]) + "\n"


def of(analysis: Analysis) -> list[Table]:
    """Every table that has rows: arms or quantities, claims, exploratory findings."""
    found = [arms(analysis), quantities(analysis), claims(analysis), explorations(analysis)]
    return [table for table in found if table.rows]


def arms(analysis: Analysis) -> Table:
    """Every arm's metric, with as many digits as the typical interval bears."""
    estimates = [arm.estimate for arm in analysis.arms]
    spread = [one for one in estimates if one.sd > 0]
    sizes = [abs(one.mean) for one in estimates if one.n and one.mean]
    if spread and max(sizes) < 1e3 * min(sizes):
        common = [
            statistics.median(width) for width in zip(*((phrasing.half_width(e), e.sd) for e in spread), strict=True)
        ]
    else:
        common = []
    rows = [
        [*arm.labels.values(), *_numbers(one, *common), str(one.n), str(arm.diverged)]
        + ([str(arm.stopped_at or "–")] if analysis.stopped else [])
        for arm, one in zip(analysis.arms, estimates, strict=True)
    ]
    axes = [axis["name"] for axis in analysis.study["axes"]]
    header = [*axes, phrasing.metric(analysis.study), "95 % interval", "sd", "seeds", "diverged"]
    return Table("Arms", header + (["stopped at step"] if analysis.stopped else []), rows, len(axes))


def _numbers(one: Estimate, half: float = math.nan, sd: float = math.nan) -> list[str]:
    """Mean, interval and standard deviation, to the digits that these uncertainties bear, by default its own."""
    own = (phrasing.half_width(one), one.sd) if math.isnan(half) else (half, sd)
    mean, low, high = numbers((one.mean, one.low, one.high), own[0])
    return [mean, "–" if low == "–" else f"{low} to {high}", number(one.sd, own[1])]


def quantities(analysis: Analysis) -> Table:
    """Every number that was measured or derived; exact ones as they are."""

    def row(one: ArmSummary) -> list[str]:
        mean = one.estimate
        if analysis.exact:
            return [phrasing.arm(one.labels), exact(mean.mean)]
        return [phrasing.arm(one.labels), *_numbers(mean), str(mean.n)]

    unit = f" ({analysis.study['unit']})" if analysis.study["unit"] and not analysis.arms else ""
    header = ["quantity", f"value{unit}"] if analysis.exact else ["quantity", f"mean{unit}", "95 % interval", "sd", "n"]
    return Table("Quantities", header, [row(one) for one in analysis.quantities], 1)


def claims(analysis: Analysis, brief: bool = False) -> Table:
    """Every declared claim, with its test; in brief, as much as fits a page of a paper."""
    rows = []
    for claim in analysis.claims:
        judged = claim.judgement
        spread = phrasing.half_width(judged.effect)
        found = number(judged.detectable, spread) if judged.effect.sd else "–"
        tested = [number(judged.t, 1.0), *map(p_value, (judged.p, judged.p_holm))] if judged.effect.sd else ["–"] * 3
        told = [phrasing.effect(claim), phrasing.claimed(claim), str(judged.effect.n)]
        rows.append([claim.text, judged.verdict, *told, *(tested[-1:] if brief else [found, *tested])])
    header = ["claim", "verdict", "measured [95 %]", "claimed", "n"]
    return Table("Claims", header + (["p (Holm)"] if brief else ["detectable", "t", "p", "p (Holm)"]), rows, 4)


def explorations(analysis: Analysis) -> Table:
    """Every one-step contrast that no claim is about."""
    rows = []
    for one in analysis.explorations:
        contrast = [one.axis, f"{one.label} − {one.reference}", phrasing.labels(one.context) or "–"]
        mark = "clear" if one.clear else "hint" if one.hint else ""
        difference = phrasing.interval(one.judgement.effect, "+")
        rows.append([*contrast, difference, mark, p_value(one.judgement.p), p_value(one.judgement.p_holm)])
    header = ["axis", "contrast", "with", "difference [95 %]", "", "p", "p (Holm)"]
    return Table("Every one-step contrast that no claim is about", header, rows, 5)


def document(analysis: Analysis) -> str:
    """Question, answer and tables as a Markdown document."""
    parts = [f"# {analysis.study['question']}\n", f"{phrasing.verdict(analysis)}\n"]
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in of(analysis)]
    if analysis.limits:
        parts.append("## What this does not show\n\n" + "".join(f"- {limit}\n" for limit in analysis.limits))
    return "\n".join(parts)


def paper(analysis: Analysis) -> str:
    """The tables of arms or quantities and of claims, for a LaTeX document to copy from or to input."""
    found = [arms(analysis), quantities(analysis), claims(analysis, brief=True)]
    parts = [
        f"% {tex.text(table.title)}: needs \\usepackage{{booktabs}}\n{latex(table)}" for table in found if table.rows
    ]
    return "\n".join(parts)
