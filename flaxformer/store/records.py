"""Files of a study with digests: Parquet tables, and lines and documents of JSON (`flaxformer.system.digests`)."""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from flaxformer.store.rows import COLUMNS, CURVE
from flaxformer.system import digests
from flaxformer.system.digests import DamagedError, JsonObject, digest, read_again
from flaxformer.system.errors import UserError
from flaxformer.system.files import write_atomically

SEAL = re.compile(rb"flaxformer:[0-9a-f]{32}")
"""Place of a Parquet file's digest in its metadata; the digest is of the file with zeros there."""
UNSEALED = b"flaxformer:" + b"0" * 32
PART = 2**20
"""Bytes of a file that are read at a time to compute its digest."""

POLARS_TYPES: dict[str, pl.DataType] = {
    column.name: {"text": pl.String(), "integer": pl.Int64(), "number": pl.Float64()}.get(
        column.kind, pl.List(pl.Int64())
    )
    for column in COLUMNS
}
"""Types of the fixed columns of results, which a column of nulls alone would not show."""
KINDS = {column.name: column.kind for column in COLUMNS}
"""Kind of each fixed column: text, number, integer or list of integers."""
INTEGER_TYPES = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
FLOAT_TYPES = (pl.Float32, pl.Float64)


# --- lines and documents ------------------------------------------------------------------------------------


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Add a row as one line with its digest; it is on the disk when this returns, or the file is as it was.

    Raises:
      UserError: it cannot be written, such as on a full disk.
    """
    with writing(path):
        digests.append_line(path, row)


def write_document(path: Path, data: JsonObject) -> None:
    """Write plain data as one readable JSON file with its digest.

    Raises:
      UserError: it cannot be written.
    """
    with writing(path):
        digests.write_document(path, data)


# --- tables ----------------------------------------------------------------------------------------------


def write_table(path: Path, rows: Iterable[Mapping[str, Any]] | pl.DataFrame) -> None:
    """Write rows, other flat mappings, or a table as one Parquet file with its digest, which is read back.

    Raises:
      UserError: it cannot be written, or what is read back is damaged; `path` is then as it was.
    """
    table = rows if isinstance(rows, pl.DataFrame) else frame_of(rows)
    buffer = io.BytesIO()
    table.write_parquet(buffer, metadata={"digest": UNSEALED.decode()})
    with buffer.getbuffer() as data, writing(path):  # released early: CPython 3.12.1 crashes when it collects one
        footer = _footer(len(data), bytes(data[-8:]))
        seal = b"flaxformer:" + digest(data, 16).encode()
        data[footer:] = bytes(data[footer:]).replace(UNSEALED, seal)
        write_atomically(path, data, check=check_table)


def frame_of(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows, or other flat mappings, as a table; fixed columns have their types even where all values are null."""
    return pl.DataFrame([dict(row) for row in rows], infer_schema_length=None, schema_overrides=POLARS_TYPES)


def read_rows(path: Path) -> list[JsonObject]:
    """The rows of a Parquet file of results, with columns of the right types.

    Raises:
      DamagedError: it has no digest, is not what was written, or has a column of another type.
    """

    def check(table: pl.LazyFrame) -> pl.LazyFrame:
        check_types(table.collect_schema())
        return table

    return read_columns(path, check).to_dicts()


def read_table(path: Path) -> list[JsonObject]:
    """The rows of a Parquet file.

    Raises:
      DamagedError: it has no digest, or is not what was written.
    """
    return read_columns(path, lambda table: table).to_dicts()


def read_columns(path: Path, choose: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
    """The part of a Parquet file that `choose` selects; the whole file is checked, and only this part is decoded.

    Raises:
      DamagedError: it has no digest, or is not what was written.
      FileNotFoundError: it is not there.
    """
    while True:
        checked = check_table(path)
        try:
            selected = choose(pl.scan_parquet(path, glob=False)).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
            if checked == _version_at(path):
                text = str(error).splitlines()[0] if str(error) else ""
                raise DamagedError(f"{type(error).__name__}: {text}") from None
        else:
            if checked == _version_at(path):  # else it was replaced after it was checked
                return selected


def check_types(schema: pl.Schema) -> None:
    """Check that a Parquet file has the columns of a table of rows (`store.rows.Row`), each of its type.

    Raises:
      DamagedError: the first column of another type, or a required one that is absent.
    """
    for column in COLUMNS:
        if column.is_required and column.name not in schema:
            raise DamagedError(f"it has no column {column.name}")
    for name, dtype in schema.items():
        if dtype != pl.Null and not _has_type(name, dtype):
            expected = KINDS.get(name, "numbers" if name.endswith(CURVE) else "text or numbers")
            raise DamagedError(f"its column {name} is of the type {dtype}; expected {expected}")


def _has_type(name: str, dtype: pl.DataType) -> bool:
    kind = KINDS.get(name)
    if kind == "list of integers" or name.endswith(CURVE):
        inner = dtype.inner if isinstance(dtype, pl.List) else None
        return inner == pl.Null or inner in INTEGER_TYPES or (kind is None and inner in FLOAT_TYPES)
    if kind is None:
        return dtype == pl.String or is_number(dtype)
    return dtype == pl.String if kind == "text" else is_number(dtype) and (kind == "number" or dtype not in FLOAT_TYPES)


def is_number(dtype: pl.DataType) -> bool:
    """True for the types of a metric."""
    return dtype in INTEGER_TYPES or dtype in FLOAT_TYPES or dtype == pl.Boolean


FileVersion = tuple[int, int, int]
"""Number, size and time of a file, which differ after the file is replaced."""


@read_again
def _version_at(path: Path) -> FileVersion:
    """Version of the file that is there now; a network file system looks it up again when a file is opened."""
    with path.open("rb") as file:
        return _version(os.fstat(file.fileno()))


def _version(about: os.stat_result) -> FileVersion:
    return about.st_ino, about.st_size, about.st_mtime_ns


@read_again
def check_table(path: Path) -> FileVersion:
    """Check the digest of a Parquet file, of which one part after another is in memory.

    Raises:
      DamagedError: it has no digest, or is not what was written.
    """
    with path.open("rb") as file:
        version = _version(os.fstat(file.fileno()))
        size, first = version[1], file.read(4)
        file.seek(max(0, size - 8))
        last = file.read(8)
        if not (first == last[-4:] == b"PAR1"):
            raise DamagedError("it is not a whole Parquet file")
        footer, computed = _footer(size, last), hashlib.blake2b(digest_size=16)
        file.seek(0)
        for begin in range(0, footer, PART):
            computed.update(file.read(min(PART, footer - begin)))
        tail = file.read()
    seals = set(SEAL.findall(tail))
    if not seals:
        raise DamagedError("it has no digest")
    if not any(seal == _seal(computed, tail.replace(seal, UNSEALED)) for seal in seals):
        raise DamagedError("its digest differs")
    return version


def _footer(size: int, last: bytes) -> int:
    """Place of a Parquet file's metadata, from its size and its last 8 bytes."""
    return max(0, size - 8 - int.from_bytes(last[:4], "little"))


def _seal(before: "hashlib.blake2b", tail: bytes) -> bytes:
    whole = before.copy()
    whole.update(tail)
    return b"flaxformer:" + whole.hexdigest().encode()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, a file that cannot be written is one clear message.

    Raises:
      UserError: the file, and what the system says.
    """
    try:
        yield
    except (OSError, DamagedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path} cannot be written: {reason}; finished runs are kept: correct this, and run again"
        ) from error
