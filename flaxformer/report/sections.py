"""Parts of a report: paragraphs, lists, tables and figures in sections, each with the forms that have it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report.table import DOCUMENTS, PAGE, Forms, ItemTable, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

DrawFigure: TypeAlias = "Callable[[float], Drawing | None]"
"""From a width in inches to a figure; None if there is nothing to draw."""


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text; left out if it is empty."""

    text: str
    on: Forms = DOCUMENTS
    style: str = "soft"
    """Class in the page: "soft", or "" for ordinary text."""


@dataclasses.dataclass(frozen=True)
class Bullets:
    """A list of texts; left out if it is empty. The terminal has a label before each."""

    texts: Sequence[str]
    on: Forms = DOCUMENTS
    label: str = "· "


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """Claims with their verdicts, and notes on each, for the terminal."""

    notes: Sequence[tuple[JudgedClaim, Sequence[str]]]
    on: Forms = ("terminal",)


@dataclasses.dataclass(frozen=True)
class Definitions:
    """Names and texts for the page; an empty text is left out with its name."""

    texts: Sequence[tuple[str, str]]
    on: Forms = PAGE


@dataclasses.dataclass(frozen=True)
class Code:
    """Preformatted text for the page, of which long lines are wrapped on request."""

    text: str
    is_wrapped: bool = False
    on: Forms = PAGE


@dataclasses.dataclass(frozen=True)
class Folded:
    """A part that the page shows on a click on its summary."""

    summary: str
    part: "Part"
    on: Forms = PAGE


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page, which is also written to files.

    name: unique in the report; the name of its files.
    draw: function that draws it.
    caption: text below it.
    describe: function that returns its content in words and numbers, for readers who do not see it.
    when: False if the analysis has no room or reason for it.
    """

    name: str
    draw: DrawFigure
    caption: str
    describe: Callable[[], str]
    when: bool = True
    on: Forms = PAGE


Part: TypeAlias = Paragraph | Bullets | Verdicts | Definitions | Code | Folded | Figure | Table | ItemTable


@dataclasses.dataclass(frozen=True)
class ReportSection:
    """A title and its parts; left out where none of them has content. Without a title, the parts stand alone."""

    title: str
    parts: Sequence[Part]


@dataclasses.dataclass(frozen=True)
class StudyReport:
    """A report: the question, how the answer was reached, the answer, and the sections.

    verdict: the verdict that colours the answer; empty for none.
    """

    name: str
    question: str
    about: str
    answer: str
    verdict: str
    sections: Sequence[ReportSection]

    @property
    def parts(self) -> list[Part]:
        """All parts, in order."""
        return [part for section in self.sections for part in section.parts]
