"""Results that show themselves: as text in a terminal, and as HTML in a notebook, by the report's own renderers."""

import io
import shutil
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.text import Text

from flaxformer.report import figures, html
from flaxformer.report.sections import Figure, StudyReport
from flaxformer.report.table import Item, ItemTable
from flaxformer.report.width import fit_width, shorten_cells
from flaxformer.system.wording import printable

WIDEST = 100
"""Largest width of a text, in characters."""
SECTIONS = (
    *("", "Claims", "Qualifications", "Best values", "Scaling", "Learning curves", "Heads", "Limits"),
    *("Arms", "Quantities", "Failed runs", "Evaluations", "Samples"),
)
"""Titles of the sections of a report that a notebook shows; the page has all."""


def text(show: Callable[[Console], object]) -> str:
    """Return what a function prints on a console as wide as the terminal."""
    out = io.StringIO()
    width = min(shutil.get_terminal_size().columns, WIDEST)
    show(
        Console(
            file=out,
            width=width,
            markup=False,
            highlight=False,
            force_jupyter=False,
            force_terminal=False,
            color_system=None,
        )
    )
    return "\n".join(line.rstrip() for line in printable(out.getvalue()).rstrip("\n").split("\n"))


def notebook(document: StudyReport) -> str:
    """Return a report as HTML for a notebook, with its figures."""
    sections = [section for section in document.sections if section.title in SECTIONS]
    drawn = figures.draw_for_notebook(
        part for section in sections for part in section.parts if isinstance(part, Figure)
    )
    return html.fragment(html.report_fragments(document, drawn, SECTIONS))


class ShownList(list[Item]):
    """A list that shows itself as a table of the report.

    Args:
      items: the items.
      table: the table of these items.
      line: the text of an item in a terminal; None for the table there too.
    """

    def __init__(
        self, items: Iterable[Item], table: ItemTable[Item], line: Callable[[Item], Text] | None = None
    ) -> None:
        super().__init__(items)
        self.table, self.line = table, line

    def __repr__(self) -> str:
        if not self:
            return "[]"
        if self.line is not None:
            lines = Text("\n").join(map(self.line, self))
            return text(lambda console: console.print(lines))
        shown = shorten_cells(self.table.in_form("terminal"))
        return text(lambda console: console.print(fit_width(shown, console.width)))

    def _repr_html_(self) -> str:
        return html.fragment([html.table(self.table.in_form("page"))])
