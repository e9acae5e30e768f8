"""Pages of HTML that stand alone: no script, nothing fetched, readable on a phone, on a desk and on paper."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from flaxformer.report.tables import Table

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ink: #1d1f23; --soft: #5f636b; --line: #dcdcd7; --paper: #fdfdfb; --box: #f3f3ef; --link: #004488;
  --supported: #00695c; --refuted: #b3391f; --inconclusive: #5c5c5c; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e6e3; --soft: #a3a7ae; --line: #3a3c41; --paper: #191a1d;
  --box: #24262a; --link: #8fbcee; --supported: #5cc4b3; --refuted: #ef8a70; --inconclusive: #b5b5b5; }} }}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 60rem; margin: 2rem auto 4rem; padding: 0 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem; text-wrap: balance; }}
h2 {{ font-size: 1.1rem; margin: 2.2rem 0 .5rem; }}
a {{ color: var(--link); }}
.soft, figcaption, th, dt {{ color: var(--soft); }}
.soft, figcaption {{ font-size: .88rem; }}
.answer {{ font-size: 1.12rem; margin: 1.1rem 0; border-left: 4px solid var(--soft); padding-left: .8rem; }}
ul {{ padding-left: 1.2rem; }}
li {{ margin: .3rem 0; }}
ul.claims {{ list-style: none; padding: 0; }}
.claims li {{ border-left: 4px solid; padding-left: .8rem; margin: .8rem 0; }}
li.supported, p.supported {{ border-color: var(--supported); }} .supported b {{ color: var(--supported); }}
li.refuted, p.refuted {{ border-color: var(--refuted); }} .refuted b {{ color: var(--refuted); }}
li.inconclusive, p.inconclusive {{ border-color: var(--inconclusive); }}
.inconclusive b {{ color: var(--inconclusive); }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid var(--line); }}
th {{ font-weight: 600; vertical-align: bottom; }}
td {{ white-space: nowrap; }}
td.long {{ white-space: normal; min-width: 12rem; }}
.number {{ text-align: right; }}
figure {{ margin: 1.4rem 0; }}
.sheet {{ background: #fff; border: 1px solid var(--line); border-radius: 4px; padding: .5rem; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; height: auto; margin: 0 auto; }}
figure.column .sheet {{ max-width: 36rem; }}
figure.page svg {{ min-width: 40rem; }}
figcaption {{ margin-top: .4rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; font-size: .9rem; margin: 0; }}
dd {{ margin: 0; min-width: 0; }}
pre {{ background: var(--box); padding: .7rem; overflow-x: auto; font-size: .8rem; overflow-wrap: normal; }}
pre.wrapped {{ white-space: pre-wrap; }}
summary {{ cursor: pointer; }}
@media (max-width: 30rem) {{ dl {{ grid-template-columns: 1fr; gap: 0; }} dd {{ margin-bottom: .4rem; }}
  body {{ margin-top: 1rem; }} h1 {{ font-size: 1.3rem; }}
  .cards thead {{ display: none; }}
  .cards td {{ display: inline-block; white-space: normal; border: 0; padding: .1rem .8rem .1rem 0; }}
  .cards td.short::before {{ content: attr(data-name) " "; color: var(--soft); }}
  .cards td:first-child, .cards td.long {{ display: block; }}
  .cards tr {{ display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }} }}
@media print {{ body {{ margin: 0; max-width: none; }} figure, tr {{ break-inside: avoid; }} }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
LONG = 34
"""Characters from which a cell is wrapped."""


def page(title: str, parts: Iterable[str]) -> str:
    """A page of the parts that are not empty."""
    return PAGE.format(title=escape(title), body="\n".join(part for part in parts if part))


def section(title: str, body: str) -> str:
    """A heading and what is under it; nothing where that is empty."""
    return f"<h2>{escape(title)}</h2>\n{body}" if body else ""


def listed(items: Iterable[str]) -> str:
    """A list of texts."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def defined(items: Iterable[tuple[str, str]]) -> str:
    """Names and what they are; those that are nothing are left out."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in items if text)
    return f"<dl>{rows}</dl>" if rows else ""


def code(text: str, wrapped: bool = False) -> str:
    """Text as it is; wrapped where its lines are sentences to be typed, as commands are."""
    form = ' class="wrapped"' if wrapped else ""
    return f"<pre{form}>{escape(text)}</pre>"


def folded(summary: str, body: str) -> str:
    """Something long behind its summary."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(one: Table, links: Sequence[str | None] = (), cards: bool = False) -> str:
    """A table in a box that scrolls by itself.

    Args:
      one: what is in it.
      links: where each row's first cell leads.
      cards: on a phone, a block per row rather than a table that scrolls; for few columns of much text.
    """

    def cell(tag: str, i: int, text: str, link: str | None) -> str:
        shown = f'<a href="{escape(link)}">{escape(text)}</a>' if link and i == 0 else escape(text)
        if not one.is_text(i):
            return f'<{tag} class="number">{shown}</{tag}>'
        if tag == "th":
            return f"<th>{shown}</th>"
        if text in VERDICTS:
            return f'<td class="{text}"><b>{shown}</b></td>'
        if len(text) > LONG or i == 0:
            return f'<td class="long">{shown}</td>' if len(text) > LONG else f"<td>{shown}</td>"
        return f'<td class="short" data-name="{escape(one.header[i])}">{shown}</td>'

    def line(tag: str, cells: Sequence[str], link: str | None = None) -> str:
        return f"<tr>{''.join(cell(tag, i, text, link) for i, text in enumerate(cells))}</tr>"

    targets = links or [None] * len(one.rows)
    rows = "".join(line("td", row, link) for row, link in zip(one.rows, targets, strict=True))
    head = line("th", one.header)
    form = "cards" if cards else "plain"
    return f'<div class="scroll"><table class="{form}"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


VERDICTS = {"supported", "refuted", "inconclusive"}


def figure(svg: str, name: str, caption: str) -> str:
    """An SVG inlined beside others: no XML prologue, ids of its own; a wide one scrolls on a phone."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    width = float(re.search(r'width="([\d.]+)pt"', svg)[1])  # type: ignore[index]
    form = "column" if width < 300 else "page"
    label = f'role="img" aria-label="{escape(caption)}"'
    sheet = f'<div class="sheet">{svg.replace("<svg", f"<svg {label}", 1)}</div>'
    return f'<figure class="{form}">{sheet}<figcaption>{escape(caption)}</figcaption></figure>'
