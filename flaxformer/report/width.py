"""Tables that fit the width of a terminal."""

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from flaxformer.report.table import FOLDER, Table

MOST_SHOWN = 200
"""Largest number of rows of a table in the terminal."""
GAP = 2
"""Spaces between two columns."""
SHORT = 8
"""Width of a header that is not wrapped."""
NARROW = 24
"""Width down to which a column of text is wrapped before other means are taken."""


def shorten_cells(table: Table) -> Table:
    """The table with the first `MOST_SHOWN` rows, and a last row that says where the others are."""
    more = len(table.rows) + table.omitted - MOST_SHOWN
    if more <= 0:
        return table
    where = f"{FOLDER}/{table.file}.csv" if table.file else "results.md"
    last_row = [f"and {more:,} more, in {where}", *[""] * (len(table.header) - 1)]
    return Table(table.title, table.header, [*table.rows[:MOST_SHOWN], last_row], table.texts)


def fit_width(table: Table, width: int) -> Group:
    """The table within a width, without cutting anything.

    As far as is necessary, headers are wrapped to the width of their columns, columns of text are joined to one, which
    is wrapped, and columns of numbers that do not fit beside it follow below, with the first column again.
    """
    if not table.rows:
        return Group()
    every = range(len(table.header))
    if _total(map(_widest, _columns(table))) <= width:
        return Group(_rich(table, every))
    table = wrapped_headers(table)
    if table.texts > 1 and _least_width(table) > width:
        table = wrapped_headers(join_columns(table))
    widths = [_widest(column) for column in _columns(table)]
    texts, numbers = widths[: table.texts], widths[table.texts :]
    least = _least_width(table) - sum(size + GAP for size in numbers)
    room = width - min(_total(texts), max(least, width - sum(size + GAP for size in numbers)))
    blocks: list[list[int]] = [[]]
    for column, size in enumerate(numbers, table.texts):
        if blocks[-1] and sum(widths[i] + GAP for i in blocks[-1]) + size + GAP > room:
            blocks.append([])
        blocks[-1].append(column)
    return Group(*(_rich(table, [*range(table.texts), *block]) for block in blocks))


def join_columns(table: Table) -> Table:
    """The table with its columns of text in one."""

    def join(cells: Sequence[str], separator: str) -> list[str]:
        return [separator.join(filter(None, cells[: table.texts])), *cells[table.texts :]]

    return Table(table.title, join(table.header, " · "), [join(row, " · ") for row in table.rows], 1)


def wrapped_headers(table: Table) -> Table:
    """The table with headers of several lines, each as wide as its column's cells or its longest word."""
    lines = []
    for header, *cells in _columns(table):
        width = max(min(len(header), SHORT), *map(len, (*header.split(), *cells)))
        lines.append(textwrap.wrap(header, max(width, 1)))
    height = max(map(len, lines))
    headers = ["\n".join([""] * (height - len(header_lines)) + header_lines) for header_lines in lines]
    return Table(table.title, headers, table.rows, table.texts)


def _columns(table: Table) -> list[tuple[str, ...]]:
    """The header and the cells of each column."""
    return list(zip(table.header, *table.rows, strict=True))


def _widest(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n"))


def _least_width(table: Table) -> int:
    """Width of the table when its widest column of text is wrapped."""
    widths = [_widest(column) for column in _columns(table)]
    if table.texts:
        widest = max(range(table.texts), key=widths.__getitem__)
        widths[widest] = min(widths[widest], NARROW)
    return _total(widths)


def _total(widths: Iterable[int]) -> int:
    """Width of columns of these widths, with the gaps between them."""
    return sum(width + GAP for width in widths) - GAP


def _rich(table: Table, columns: Sequence[int]) -> RichTable:
    """Some columns of the table: text is wrapped where it must be, numbers never."""
    rich_table = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
    for i in columns:
        if table.is_text(i):
            rich_table.add_column(table.header[i], overflow="fold")
        else:
            rich_table.add_column(table.header[i], justify="right", no_wrap=True)
    for row in table.rows:
        rich_table.add_row(*(Text(row[i]) for i in columns))
    return rich_table
