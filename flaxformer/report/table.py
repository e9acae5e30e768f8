"""Tables of a report: columns that say how an item is shown, what files have of it, and which forms have the column."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from flaxformer.store.declaration import Labels

ReportForm = Literal["page", "markdown", "paper", "terminal"]
"""Form of a report: report.html, results.md, results.tex, or the terminal."""
Forms = Sequence[ReportForm]
PAGE: Forms = ("page",)
DOCUMENTS: Forms = ("page", "markdown")
PRINTED: Forms = ("page", "markdown", "paper")
NOT_IN_PAPER: Forms = ("page", "markdown", "terminal")
EVERYWHERE: Forms = ("page", "markdown", "paper", "terminal")
FOLDER = "tables"
"""Folder of the whole tables beside the page."""
MOST_ROWS = 500
"""Largest number of rows of a table in a form of the report, of a table that a file has too."""
Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first `texts` columns hold text, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int
    omitted: int = 0
    """Number of further rows, which are in a file."""
    file: str = ""
    """Name of that file, without its ending."""
    on: Forms = DOCUMENTS
    """Forms of the report that have the table."""

    @property
    def remark(self) -> str:
        """Sentence on the rows that are not shown; empty without any."""
        if not self.omitted:
            return ""
        shown, all_rows = f"{len(self.rows):,}", f"{len(self.rows) + self.omitted:,}"
        where = f"{FOLDER}/{self.file}"
        return f"These are the first {shown} of {all_rows} rows; {where}.csv and {where}.parquet have all."

    def is_text(self, column: int) -> bool:
        """True if a column holds text, which is set flush left."""
        return column < self.texts

    def in_form(self, form: ReportForm) -> "Table":
        """The table itself, which is the same in every form."""
        return self


@dataclasses.dataclass(frozen=True)
class TableColumn(Generic[Item]):
    """Column of a table: its name, and the text of each item.

    Columns of text stand before columns of numbers. A column with `when` false is left out everywhere.
    """

    name: str
    text: Callable[[Item], str]
    values: Mapping[str, Callable[[Item], object]] = dataclasses.field(default_factory=dict)
    """Values of an item in a file, by the name of the file's column."""
    on: Forms = EVERYWHERE
    when: bool = True
    is_text: bool = False


def words(name: str, text: Callable[[Item], str], on: Forms = EVERYWHERE, when: bool = True) -> TableColumn[Item]:
    """Return a column of text, which a file has too."""
    return TableColumn(name, text, {name: text}, on, when, is_text=True)


def number(
    name: str,
    value: Callable[[Item], Value],
    form: Callable[[Value], str] = str,
    file: str = "",
    on: Forms = EVERYWHERE,
    when: bool = True,
) -> TableColumn[Item]:
    """Return a column of numbers, of which a report shows a form, and a file has the value under the name `file`."""
    return TableColumn(name, lambda item: form(value(item)), {file or name: value}, on, when)


def levels(axes: Iterable[str], labels: Callable[[Item], Labels]) -> list[TableColumn[Item]]:
    """Return a column per axis with the level of an item, whose levels `labels` gives."""

    def level(axis: str) -> TableColumn[Item]:
        return words(axis, lambda item: labels(item)[axis])

    return [level(axis) for axis in axes]


@dataclasses.dataclass(frozen=True)
class ItemTable(Generic[Item]):
    """A table with a row per item.

    With the name of a file in `FOLDER`, forms of the report have the first `MOST_ROWS` rows, and the file has all.
    Tables with the same file are about the same items; the file has a row per item with the columns of all of them.
    """

    title: str
    columns: Sequence[TableColumn[Item]]
    items: Sequence[Item]
    file: str = ""
    on: Forms = DOCUMENTS

    def in_form(self, form: ReportForm) -> Table:
        """Return the texts of the columns that a form of the report has."""
        columns = [column for column in self.columns if column.when and form in column.on]
        items = self.items[:MOST_ROWS] if self.file else self.items
        rows = [[column.text(item) for column in columns] for item in items]
        texts, omitted = sum(column.is_text for column in columns), len(self.items) - len(items)
        return Table(self.title, [column.name for column in columns], rows, texts, omitted, self.file, self.on)

    def values(self, item: Item) -> dict[str, object]:
        """Return what the file has of an item; a name that another column has already gets a number."""
        row: dict[str, object] = {}
        for column in self.columns:
            for name, value in column.values.items() if column.when else ():
                row[name if name not in row else f"{name} ({len(row)})"] = value(item)
        return row
