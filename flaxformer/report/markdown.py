"""The report in GitHub's Markdown."""

from collections.abc import Sequence

from flaxformer.report.sections import Bullets, Paragraph, Part, ReportSection, StudyReport
from flaxformer.report.table import ItemTable, Table
from flaxformer.report.texts import passive


def render(document: StudyReport) -> str:
    """Return the question, the answer and the sections as a document."""
    blocks = [f"# {passive(document.question)}\n", f"{passive(document.answer)}\n"]
    return "\n".join([*blocks, *filter(None, map(_section, document.sections))])


def _section(section: ReportSection) -> str:
    texts = [text for part in section.parts if "markdown" in part.on if (text := _part(part, section.title))]
    return "\n".join([*([f"## {passive(section.title)}\n"] if section.title else []), *texts]) if texts else ""


def _part(part: Part, title: str) -> str:
    """A part under the title of its section; empty without content."""
    match part:
        case Paragraph(text):
            return f"{passive(text)}\n" if text else ""
        case Bullets(texts):
            return bullets(texts)
        case Table() | ItemTable():
            shown = part.in_form("markdown")
            heading = f"### {passive(shown.title)}\n\n" if shown.title != title else ""
            return f"{heading}{table(shown)}" if shown.rows else ""
    raise NotImplementedError(f"{type(part).__name__} in Markdown")


def bullets(texts: Sequence[str]) -> str:
    """Return a list; empty without any text."""
    return "".join(f"- {passive(text)}\n" for text in texts)


def table(shown: Table) -> str:
    """Return a table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(passive(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|".join(" --- " if shown.is_text(i) else " ---: " for i in range(len(shown.header)))
    text = "\n".join([line(shown.header), f"|{rule}|", *map(line, shown.rows)]) + "\n"
    return text + (f"\n{shown.remark}\n" if shown.remark else "")
