"""The report as one HTML page."""

from collections.abc import Collection, Mapping
from html import escape

from flaxformer.report import html
from flaxformer.report.html import PageFigure
from flaxformer.report.sections import (
    Bullets,
    Code,
    Definitions,
    Figure,
    Folded,
    Paragraph,
    Part,
    ReportSection,
    StudyReport,
)
from flaxformer.report.table import ItemTable, Table


def render(document: StudyReport, drawn: Mapping[str, PageFigure]) -> str:
    """Return the page: question, answer, main figure and its table; then everything else.

    Args:
      document: the report.
      drawn: its figures that have content, by their names.
    """
    return html.page(document.name, fragments(document, drawn))


def fragments(
    document: StudyReport, drawn: Mapping[str, PageFigure], titles: Collection[str] | None = None
) -> list[str]:
    """Return the heading, the answer and the sections as HTML, of all sections or of those with some titles."""
    heading = [
        f"<h1>{escape(document.question)}</h1>",
        f'<p class="soft">{escape(document.name)} · {escape(document.about)}</p>',
        f'<p class="answer {document.verdict}">{escape(document.answer)}</p>',
    ]
    sections = [section for section in document.sections if titles is None or section.title in titles]
    return [*heading, *(_section(section, drawn) for section in sections)]


def _section(section: ReportSection, drawn: Mapping[str, PageFigure]) -> str:
    body = "".join(_part(part, section.title, drawn) for part in section.parts if "page" in part.on)
    return html.section(section.title, body) if section.title else body


def _part(part: Part, title: str, drawn: Mapping[str, PageFigure]) -> str:
    """A part under the title of its section; empty without content."""
    match part:
        case Paragraph(text, style=style):
            return html.paragraph(text, style)
        case Bullets(texts):
            return html.bullet_list(texts)
        case Definitions(texts):
            return html.definition_list(texts)
        case Code(text, is_wrapped):
            return html.code(text, is_wrapped)
        case Figure(name, caption=caption, describe=describe):
            return html.figure(drawn[name], name, caption, describe()) if name in drawn else ""
        case Folded(summary, inner):
            body = _part(inner, title, drawn)
            return html.details(summary, body) if body else ""
        case Table() | ItemTable():
            shown = part.in_form("page")
            heading = f"<h3>{escape(shown.title)}</h3>" if shown.title != title else ""
            return f"{heading}{html.table(shown)}" if shown.rows else ""
    raise NotImplementedError(f"{type(part).__name__} on a page")
