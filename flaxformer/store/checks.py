"""Checks of a study's folder: names of files, characters of texts, and that results are read back exactly."""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from flaxformer.store import records
from flaxformer.store.declaration import Declaration, DeclaredTrial, read
from flaxformer.store.rows import Row
from flaxformer.system import digests
from flaxformer.system.digests import DamagedError, read_again
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain

CONTROL = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|d[89a-f][0-9a-f]{2})|\x7f|\xc2[\x80-\x9f]",
    re.IGNORECASE,
)
"""Characters in JSON that a terminal would obey, or that are not text."""


def check_file_name(group: str) -> str:
    """Return a group's name, which is used as a file name.

    Raises:
      UserError: the file would lie outside the folder.
    """
    if not group or group.startswith(".") or set(group) & set("/\\\0\n") or len(group.encode()) > 200:
        raise UserError(f"group is named {group!r}; expected a plain file name")
    return group


@read_again
def check_characters(path: Path) -> None:
    """Raise UserError if a file of JSON holds a text that a terminal would obey, or that is not valid."""
    if match := CONTROL.search(path.read_bytes()):
        shown = match[0].decode(errors="replace").encode("unicode_escape").decode()
        raise UserError(f"{path} holds the control character {shown}; expected printable text, as 'run' writes it")


def check_round_trip(declaration: Declaration) -> None:
    """Write a declaration, and a row of results with every label, into memory, and compare what is read back.

    Raises:
      UserError: the field that cannot be stored, its value, and what was expected.
    """
    try:
        check_document(declaration)
        check_rows(list(_rows(declaration.trials)))
    except (DamagedError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        who = f"{declaration.kind} '{declaration.name}'"
        raise UserError(
            f"the results of {who} could not be read back ({error}); change this in its file; nothing was trained"
        ) from None


def check_document(declaration: Declaration) -> None:
    """Raise ValueError if study.json would not hold a declaration exactly."""
    text = digests.document(plain(declaration))
    if match := CONTROL.search(text):
        raise DamagedError(f"it holds the control character {match[0]!r}; expected printable text")
    again = read(digests.parse_document(text))
    for name in Declaration.__struct_fields__:
        if getattr(again, name) != getattr(declaration, name):
            raise DamagedError(f"{name} is read back as another value")


def check_rows(rows: list[Row]) -> None:
    """Raise ValueError if a line, or a table, would not hold rows exactly."""
    for row in rows:
        check_file_name(row.group)
        if Row.from_columns(digests.parse_line(digests.line(row)[:-1])) != row:
            raise DamagedError(f"the row of {row.trial} is read back as another one")
    buffer = io.BytesIO()
    records.frame_of(rows).write_parquet(buffer)
    buffer.seek(0)
    if rows and [Row.from_columns(columns) for columns in pl.read_parquet(buffer).to_dicts()] != rows:
        raise DamagedError("the table of results is read back as another one")


def _rows(trials: Iterable[DeclaredTrial]) -> Iterator[Row]:
    """Yield a row without numbers for some trials, which have every label of every axis."""
    seen: set[tuple[str, str]] = set()
    for trial in trials:
        if new := {*trial.labels.items()} - seen:
            seen |= new
            about = {name: getattr(trial, name) for name in ("trial", "group", "seed", "fingerprint", "labels")}
            yield Row(**about, status="done")
