"""Texts that a report writes: what a folder's files hold is shown as data, and neither obeyed nor interpreted.

A folder may be of somebody else. Each renderer has one boundary: `write_printable` for whole documents, `passive` for
texts in Markdown, `csv_cell` for cells of a CSV; `html.escape` and `tex.text` for the other formats.
"""

import re
from pathlib import Path

from flaxformer.system.files import write_atomically
from flaxformer.system.wording import printable

BLOCK = re.compile(r"^(?=#{1,6}(\s|$)|>|[-+*](\s|$)|(=+|-+|_+)$|~~~|```)")
"""Beginning of a text that would begin a heading, quotation, list, rule, table or code in Markdown."""
FORMULA = tuple("=+-@\t\r")
"""First characters of a cell that a spreadsheet calculates."""


def write_printable(path: Path, text: str) -> None:
    """Write a document for people, in UTF-8, with "·" in place of control and direction characters."""
    write_atomically(path, printable(text).encode())


def one_line(text: str) -> str:
    """A text with a space in place of line ends and other runs of white space."""
    return " ".join(text.split())


def passive(text: str) -> str:
    """A text in one line of Markdown that makes no link, image, HTML, heading or list."""
    text = one_line(text).replace("<", "&lt;")
    return BLOCK.sub(r"\\", re.sub(r"\](?=\\*[(\[:])", r"]\\", text))


def csv_cell(text: str) -> str:
    """A cell of text for a CSV: printable, in one line, and with ' before what a spreadsheet would calculate."""
    text = printable(one_line(text))
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
