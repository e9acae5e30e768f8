"""The report in the terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import verdicts
from flaxformer.report.document import document
from flaxformer.report.sections import Bullets, Paragraph, Part, Verdicts
from flaxformer.report.table import ItemTable, Table
from flaxformer.report.width import fit_width, shorten_cells

STYLES = {"soft": "dim", "warning": "yellow"}
"""Styles of paragraphs by their class in the page."""


def show(console: Console, analysis: Analysis) -> None:
    """Print the question, the verdicts, exploratory findings, limits, and the tables of arms and quantities."""
    report = document(analysis)
    console.print(Text(report.question, style="bold"))
    console.print(Text(report.about, style="dim"))
    for part in report.parts:
        if "terminal" in part.on:
            _print(console, part)


def _print(console: Console, part: Part) -> None:
    """Print a part that has content."""
    match part:
        case Paragraph(text, style=style):
            if text:
                console.print(Text(text, style=STYLES.get(style, "")))
        case Bullets(texts, label=label):
            for text in texts:
                console.print(Text.assemble((label, "dim" if label.strip("· ") else ""), text))
        case Verdicts(notes):
            for claim, lines in notes:
                console.print(Text.assemble(verdicts.marked_verdict(claim), ": ", claim.text))
                for line in lines:
                    console.print(Padding(Text(line, style="dim"), (0, 0, 0, 4)))
        case Table() | ItemTable():
            shown = part.in_form("terminal")
            if shown.rows:
                console.print()
                console.print(fit_width(shorten_cells(shown), console.width))
        case _:
            raise NotImplementedError(f"{type(part).__name__} in a terminal")


def show_answers(console: Console, answers: Iterable[tuple[str, str]]) -> None:
    """Print the name and the answer of each of several studies."""
    for name, answer in answers:
        console.print(Text(name, style="bold"))
        console.print(Padding(Text(answer), (0, 0, 0, 2), expand=False))
