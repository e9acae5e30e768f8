"""Table: a title, a header and rows of text, of which a report shows the first ones."""

import dataclasses
from collections.abc import Sequence

FOLDER = "tables"
"""Folder of the whole tables beside the page."""
MOST_ROWS = 500
"""Largest number of rows of a table in the page, in Markdown and in LaTeX."""


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
