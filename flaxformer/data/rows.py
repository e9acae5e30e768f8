"""Rows of tables (CSV, TSV, JSON lines, Parquet), from this machine or from the Hugging Face hub.

| suffix | rule |
| --- | --- |
| .csv | the first line names the columns; cells are divided by "," (by ";" if the first line has ";" and no ","), and one with a divider, a quote or a line break in it stands in double quotes |
| .tsv | the same, divided by tabs |
| .jsonl, .ndjson | a JSON object per line |
| .parquet | read in pieces of `ROWS` rows, the needed columns of one row group at a time |

Text is UTF-8, with or without a byte order mark. Blank lines are skipped. Files that end in .gz, .bz2, .xz or .zst are
decompressed, except Parquet.
"""  # noqa: E501

import csv
import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from flaxformer.data.compressed import open_bytes, read_bytes, suffix_of
from flaxformer.data.lines import STRUCTURED, check_characters, check_names, decode_utf8, parse_json_object
from flaxformer.system.errors import UserError, quote
from flaxformer.system.extras import library
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path

ROWS = 1024
"""Rows of a Parquet file in memory at a time."""
HUB_FILES = "hf://datasets/"


class TableRow(NamedTuple):
    """Values of a row by column, and its file and line (of Parquet its row, from 1) for messages."""

    where: str
    values: Mapping[str, object]


class Cells(NamedTuple):
    """Texts of the cells of a row by column, without white space at their ends, and its file and line."""

    where: str
    values: Mapping[str, str]


@remembered
def find_table(path: str, name: str = "path") -> Path:
    """Return the file of a path, or of hf://datasets/OWNER/NAME/FILE or OWNER/NAME@REVISION/FILE (extra datasets).

    Args:
      name: of the path in messages.

    Raises:
      UserError: it is not a file, or cannot be downloaded.
    """
    if path.startswith("hf:"):
        repository, revision, file_name = _parse_hub_path(path, name)
        hub = library("huggingface_hub", "datasets", f"{name} '{path}'")
        try:
            return Path(hub.hf_hub_download(repository, file_name, repo_type="dataset", revision=revision))
        except Exception as error:  # of the library, of its HTTP client, or of the file system
            raise UserError(f"{name} is '{path}', which cannot be downloaded: {str(error).splitlines()[0]}") from None
    file = local_path(path, name)
    if not file.is_file():
        kind = "a folder; expected one file" if file.is_dir() else "not a file; expected a table"
        raise UserError(f"{name} is '{path}', which is {kind} ({', '.join(READERS)})")
    return file


def _parse_hub_path(path: str, name: str) -> tuple[str, str | None, str]:
    """Return the repository, the revision and the file (or a glob pattern of files) of a path of the hub."""
    parts = path.removeprefix(HUB_FILES).split("/", 2)
    if not path.startswith(HUB_FILES) or not all([*parts, len(parts) == 3]):
        raise UserError(f"{name} is '{path}'; expected a file of a data set, {HUB_FILES}OWNER/NAME/FILE")
    repository, _, revision = f"{parts[0]}/{parts[1]}".partition("@")
    return repository, revision or None, parts[2]


def list_hub_files(path: str, name: str) -> list[str]:
    """Return the paths of the files of a data set of the hub that match hf://datasets/OWNER/NAME/PATTERN, in order.

    Raises:
      UserError: the data set cannot be listed.
    """
    repository, revision, pattern = _parse_hub_path(path, name)
    hub = library("huggingface_hub", "datasets", f"{name} '{path}'")
    try:
        files = hub.list_repo_files(repository, repo_type="dataset", revision=revision)
    except Exception as error:
        raise UserError(f"{name} is '{path}', which cannot be listed: {str(error).splitlines()[0]}") from None
    root = path.removesuffix(pattern)
    return [root + file for file in sorted(files) if PurePosixPath("/", file).match(f"/{pattern}")]


@remembered
def table_digest(path: str, name: str = "path") -> str:
    """Return the SHA-256 of the decompressed content of a table, as it was when this process first read it."""
    return hashlib.sha256(read_bytes(find_table(path, name))).hexdigest()


def read_rows(file: Path, columns: Collection[str], name: str | None = None) -> Iterator[TableRow]:
    """Yield the rows of a table.

    Args:
      columns: those that every row must have; of Parquet, the others are not read: their values are None.
      name: of the file in messages.

    Raises:
      UserError: the file is not a table by its suffix, is damaged, or has no such column; the message has the line.
    """
    suffix, where = suffix_of(file).lower(), name or str(file)
    if suffix not in READERS:
        kind = f"is {STRUCTURED[suffix]} in another format" if suffix in STRUCTURED else "is not a table"
        raise UserError(f"'{where}' {kind} by its name; expected {', '.join(READERS)}")
    yield from READERS[suffix](file, columns, where)


@remembered
def read_cells(path: str, columns: tuple[str, ...], name: str = "path") -> tuple[Cells, ...]:
    """Return some columns of all rows of a table as text; numbers are written as Python writes them.

    Raises:
      UserError: as `read_rows`; or there are no rows, or a cell is empty, or neither text nor a finite number.
    """
    rows = read_rows(find_table(path, name), columns, path)
    table_digest(path, name)  # is kept, so that it is that of these rows if the file changes later
    cells = tuple(
        Cells(where, {column: _text(values[column], column, where) for column in columns}) for where, values in rows
    )
    if not cells:
        raise UserError(f"{name} is '{path}', which has no rows; expected at least one")
    return cells


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str | int | float | None):
        raise UserError(f"{where}: column '{column}' is {quote(value)}; expected text or a number")
    if isinstance(value, float) and not math.isfinite(value):  # as pandas writes an empty cell
        raise UserError(f"{where}: column '{column}' is {value}; expected a value (leave the row out if it has none)")
    text = "" if value is None else check_characters(str(value), f"{where}: column '{column}'").strip()
    if not text:
        raise UserError(f"{where}: column '{column}' is empty; expected a value (leave the row out if it has none)")
    return text


def _read_csv(file: Path, columns: Collection[str], where: str) -> Iterator[TableRow]:
    with open_bytes(file) as opened:
        lines = _decode_lines(opened, where)
        first = next(lines, "")
        semicolons = ";" in first and "," not in first
        divider = "\t" if suffix_of(file).lower() == ".tsv" else ";" if semicolons else ","
        rows = csv.reader(itertools.chain([first], lines), delimiter=divider, strict=True)
        header: list[str] = []
        last = 0
        try:
            for cells in rows:
                at, last = f"{where}, line {last + 1}", rows.line_num
                if cells and not header:
                    header = _check_header([cell.strip() for cell in cells], columns, at)
                elif len(cells) not in (0, len(header)):
                    raise UserError(
                        f"{at} has {len(cells)} cells; expected {len(header)}, one per column ({', '.join(header)}): "
                        f"a cell with {divider!r} in it stands in double quotes"
                    )
                elif cells:
                    yield TableRow(at, dict(zip(header, cells, strict=True)))
        except csv.Error as error:
            limit = f"cells of at most {csv.field_size_limit():,} characters"
            raise UserError(
                f"{where}, line {last + 1}: {error}; expected quotes that are closed, also around a cell with a line "
                f"end or a carriage return, and {limit}"
            ) from None
    if not header:
        raise UserError(f"{where} is empty; expected a line with the names of the columns, and rows below it")


def _check_header(header: list[str], columns: Iterable[str], where: str) -> list[str]:
    for name in header:
        if header.count(name) > 1:
            raise UserError(f"{where} names {header.count(name)} columns '{name}'; expected different names")
    check_names(header, columns, where, "column")
    return header


def _decode_lines(opened: IO[bytes], where: str) -> Iterator[str]:
    offset, expected = 0, 'UTF-8 text, which a spreadsheet writes as "CSV UTF-8"'
    for number, line in enumerate(opened, 1):
        text = decode_utf8(line, where, offset=offset, line=number, expected=expected)
        yield text.removeprefix("\ufeff") if number == 1 else text
        offset += len(line)


def _read_json_lines(file: Path, columns: Collection[str], where: str) -> Iterator[TableRow]:
    with open_bytes(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                at = f"{where}, line {number}"
                row = parse_json_object(line, at)
                check_names(row, columns, at)
                yield TableRow(at, row)


def _read_parquet(file: Path, columns: Collection[str], where: str) -> Iterator[TableRow]:
    import polars

    try:
        table = polars.scan_parquet(file)
        names, count = table.collect_schema().names(), table.select(polars.len()).collect().item()
    except Exception as error:  # Polars raises several kinds for a damaged file
        raise UserError(f"{where}: expected a Parquet file, but: {error}") from None
    check_names(names, columns, where, "column")
    unread = dict.fromkeys(names)
    for start in range(0, count, ROWS):
        try:
            rows = table.select(columns).slice(start, ROWS).collect()
        except Exception as error:
            raise UserError(f"{where}, row {start + 1} or later: expected a Parquet file, but: {error}") from None
        for number, row in enumerate(rows.iter_rows(named=True), start + 1):
            yield TableRow(f"{where}, row {number}", unread | row)


READERS: dict[str, Callable[[Path, Collection[str], str], Iterator[TableRow]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
"""Functions that read a table, by the suffix of its file."""
