"""A report as an HTML page, and the parts of such pages.

They stand alone: nothing is fetched, and they read without JavaScript, on a phone, a screen and paper. The one script
of a page sorts and filters its tables. The styles and the script are in page.css and page.js beside this file.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib import resources

from flaxformer.report.colours import DARK, PAGE_COLOURS
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
from flaxformer.system.files import digest_of
from flaxformer.system.wording import printable

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<script>
{script}
</script>
</body>
</html>
"""
LONG = 34
"""Number of characters from which a cell is wrapped."""
VERDICTS = {"supported", "refuted", "inconclusive"}


@dataclasses.dataclass(frozen=True)
class PageFigure:
    """A figure for a page, as SVG: as wide as one column of a paper, for phones, and as wide as its page.

    A notebook has one form for all: `narrow` is empty.
    """

    narrow: str
    wide: str


def page(title: str, fragments: Iterable[str]) -> str:
    """A page of the parts that are not empty, with "·" in place of control and direction characters."""
    light, dark = f":root {{ {_colours(0)} }}", f":root {{ {_colours(1)} }}"
    style = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{_resource('page.css')}"
    body = "\n".join(fragment for fragment in fragments if fragment)
    return PAGE.format(title=printable(escape(title)), style=style, body=printable(body), script=_resource("page.js"))


def fragment(parts: Iterable[str]) -> str:
    """The parts that are not empty as a box of a notebook, in the colours of its theme: styles and ids are its own."""
    body = printable("\n".join(part for part in parts if part))
    name = f"f{digest_of(body.encode())[:8]}"
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    light, dark = f"{{ {_colours(0)} }}", f"{{ {_colours(1)} }}"
    rules = _resource("page.css").replace("body {", "& {")
    style = f"""
.flaxformer {light}
@media (prefers-color-scheme: dark) {{ .flaxformer {dark} }}
[data-jp-theme-light=true] .flaxformer, .vscode-light .flaxformer {light}
[data-jp-theme-light=false] .flaxformer, .vscode-dark .flaxformer {dark}
.flaxformer.flaxformer.flaxformer {{ {rules} & {{ margin: 0; padding: .8rem 1rem; }} }}
"""
    return f'<div class="flaxformer"><style>{style}</style>\n{body}</div>'


def _colours(theme: int) -> str:
    """CSS variables of the page and of its figures, for light (0) or dark (1)."""
    pairs = {name: colours[theme] for name, colours in PAGE_COLOURS.items()}
    pairs |= {_variable(light)[2:]: (light, dark)[theme] for light, dark in DARK.items()}
    return " ".join(f"--{name}: {colour};" for name, colour in pairs.items())


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def _variable(colour: str) -> str:
    """Name of the CSS variable of a figure's colour, which is defined on dark pages."""
    return f"--c{colour.removeprefix('#')}"


def section(title: str, body: str) -> str:
    """A heading and its body; empty if the body is."""
    return f"<h2>{escape(title)}</h2>\n{body}" if body else ""


def paragraph(text: str, style: str = "") -> str:
    """A paragraph with a class of the page's styles; empty without a text."""
    form = f' class="{style}"' if style else ""
    return f"<p{form}>{escape(text)}</p>" if text else ""


def bullet_list(items: Iterable[str]) -> str:
    """A list of texts; empty without any."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def definition_list(items: Iterable[tuple[str, str]]) -> str:
    """Names and texts; an empty text is left out with its name."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in items if text)
    return f"<dl>{rows}</dl>" if rows else ""


def code(text: str, is_wrapped: bool = False) -> str:
    """Preformatted text; long lines, such as those of commands, are wrapped on request."""
    form = ' class="wrapped"' if is_wrapped else ""
    return f"<pre{form}>{escape(text)}</pre>"


def details(summary: str, body: str) -> str:
    """A body that is shown on a click on its summary."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(shown: Table, links: Sequence[str | None] = ()) -> str:
    """A table that scrolls by itself where it is too wide; on a phone, a block per row.

    Args:
      shown: the table.
      links: address for each row's first cell.
    """
    targets = links or [None] * len(shown.rows)
    head = "".join(
        f"<th{'' if shown.is_text(i) else _NUMBER}>{escape(text)}</th>" for i, text in enumerate(shown.header)
    )
    rows = "".join(_row(shown, row, link) for row, link in zip(shown.rows, targets, strict=True))
    body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>{paragraph(shown.remark, "soft")}'


_NUMBER = ' class="number"'


def _row(content: Table, cells: Sequence[str], link: str | None) -> str:
    """A row whose cells have the name of their column, for phones."""
    html_cells = []
    for i, text in enumerate(cells):
        shown = f'<a href="{escape(link)}">{escape(text)}</a>' if link and i == 0 else escape(text)
        if text in VERDICTS and content.is_text(i):
            kind, shown = text, f"<b>{shown}</b>"
        else:
            kind = "number" if not content.is_text(i) else "long" if len(text) > LONG else ""
        form = f' class="{kind}"' if kind else ""
        html_cells.append(f'<td{form} data-name="{escape(content.header[i])}"><span>{shown}</span></td>')
    return f"<tr>{''.join(html_cells)}</tr>"


def figure(forms: PageFigure, name: str, caption: str, description: str) -> str:
    """A figure, of which a phone shows the narrow form.

    Args:
      forms: both forms.
      name: unique on the page; a prefix of all ids.
      caption: text below the figure.
      description: content of the figure in words and numbers, for readers who do not see it.
    """
    sheets = "".join(
        f'<div class="{form if forms.narrow else ""}">{_inline(svg, f"{name}-{form}", description)}</div>'
        for form, svg in (("narrow", forms.narrow), ("wide", forms.wide))
        if svg
    )
    return f"<figure>{sheets}<figcaption>{escape(caption)}</figcaption></figure>"


def _inline(svg: str, name: str, description: str) -> str:
    """An SVG that can stand beside others, in colours that follow the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda match: f"var({_variable(match[0])}, {match[0]})", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def render(document: StudyReport, drawn: Mapping[str, PageFigure]) -> str:
    """Return the page: question, answer, main figure and its table; then everything else.

    Args:
      document: the report.
      drawn: its figures that have content, by their names.
    """
    return page(document.name, report_fragments(document, drawn))


def report_fragments(
    document: StudyReport, drawn: Mapping[str, PageFigure], titles: Collection[str] | None = None
) -> list[str]:
    """Return the heading, the answer and the sections as HTML, of all sections or of those with some titles."""
    heading = [
        f"<h1>{escape(document.question)}</h1>",
        f'<p class="soft">{escape(document.name)} · {escape(document.about)}</p>',
        f'<p class="answer {document.verdict}">{escape(document.answer)}</p>',
    ]
    sections = [shown for shown in document.sections if titles is None or shown.title in titles]
    return [*heading, *(_section(shown, drawn) for shown in sections)]


def _section(shown: ReportSection, drawn: Mapping[str, PageFigure]) -> str:
    body = "".join(_part(part, shown.title, drawn) for part in shown.parts if "page" in part.on)
    return section(shown.title, body) if shown.title else body


def _part(part: Part, title: str, drawn: Mapping[str, PageFigure]) -> str:
    """A part under the title of its section; empty without content."""
    match part:
        case Paragraph(text, style=style):
            return paragraph(text, style)
        case Bullets(texts):
            return bullet_list(texts)
        case Definitions(texts):
            return definition_list(texts)
        case Code(text, is_wrapped):
            return code(text, is_wrapped)
        case Figure(name, caption=caption, describe=describe):
            return figure(drawn[name], name, caption, describe()) if name in drawn else ""
        case Folded(summary, inner):
            body = _part(inner, title, drawn)
            return details(summary, body) if body else ""
        case Table() | ItemTable():
            shown = part.in_form("page")
            heading = f"<h3>{escape(shown.title)}</h3>" if shown.title != title else ""
            return f"{heading}{table(shown)}" if shown.rows else ""
    raise NotImplementedError(f"{type(part).__name__} on a page")
