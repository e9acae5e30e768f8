"""Rows on disk that know when they are damaged: each line of JSON, each Parquet file and each document has a digest.

A digest tells bad disks and torn writes from good data; it is no defence against somebody who writes another one.
Nothing here is ever unpickled or evaluated.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from flaxformer.files import write_atomically
from flaxformer.struct import UserError

Row = dict[str, Any]
SEALED_LINE = re.compile(rb'(?s)(\{.*), "digest": "([0-9a-f]{16})"\}')
SEAL = re.compile(rb"flaxformer:[0-9a-f]{32}")
"""Place of a Parquet file's digest in its metadata; the digest is of the file with zeros there."""
UNSEALED = b"flaxformer:" + b"0" * 32


class DamagedError(ValueError):
    """The data that were read differ from those that were written."""


def digest(data: bytes, size: int = 8) -> str:
    """Data in 2 × `size` hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


# --- lines -----------------------------------------------------------------------------------------------


def line(row: Row) -> bytes:
    """A row as one line of JSON, with the digest of the rest as its last field."""
    text = json.dumps(row, ensure_ascii=False).encode(errors="replace")
    return text[:-1] + b', "digest": "' + digest(text).encode() + b'"}\n'


def append_line(path: Path, row: Row) -> None:
    """Add a row as one line; it is on the disk when this returns, or the file is as it was.

    Raises:
      UserError: it cannot be written, such as on a full disk.
    """
    data = line(row)
    with writing(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            size = os.fstat(file).st_size
            try:
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            except OSError:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)


def lines(path: Path, sealed: bool = False) -> tuple[list[Row], list[str]]:
    """The rows of a file's whole lines, and what is wrong with the lines that are no rows.

    A last line without its end was cut short by a kill and does not count. `sealed` says that every line must have a
    digest.
    """
    if not path.exists():
        return [], []
    rows, wrong = [], []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            if text:
                rows.append(_opened(text, sealed))
        except (ValueError, RecursionError) as error:
            wrong.append(f"line {number}: {error}")
    return rows, wrong


def _opened(line: bytes, sealed: bool) -> Row:
    if match := SEALED_LINE.fullmatch(line):
        line = match[1] + b"}"
        if digest(line).encode() != match[2]:
            raise DamagedError("its digest differs")
    elif sealed:
        raise DamagedError("it has no digest")
    row = json.loads(line)
    if not isinstance(row, dict):
        raise DamagedError("it is no row")
    return row


# --- tables ----------------------------------------------------------------------------------------------


def write_table(path: Path, rows: list[Row]) -> None:
    """Write rows as one Parquet file with its digest."""
    buffer = io.BytesIO()
    table = pl.DataFrame(rows, infer_schema_length=None)
    table.write_parquet(buffer, metadata={"digest": UNSEALED.decode()})
    data = buffer.getvalue()
    with writing(path):
        write_atomically(path, data.replace(UNSEALED, b"flaxformer:" + digest(data, 16).encode()))


def read_table(path: Path) -> list[Row]:
    """The rows of a Parquet file.

    Raises:
      DamagedError: it is not what was written; a file without a digest is taken if it can be read.
    """
    data = path.read_bytes()
    if not (data[:4] == data[-4:] == b"PAR1"):
        raise DamagedError("it is no whole Parquet file")
    seals = set(SEAL.findall(data))
    if len(seals) == 1 and b"flaxformer:" + digest(SEAL.sub(UNSEALED, data), 16).encode() not in seals:
        raise DamagedError("its digest differs")
    try:
        return pl.read_parquet(io.BytesIO(data)).to_dicts()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None


# --- documents -------------------------------------------------------------------------------------------


def write_document(path: Path, data: Row) -> None:
    """Write plain data as one readable JSON file with its digest."""
    own = digest(json.dumps(data).encode(errors="replace"))
    text = json.dumps(data | {"digest": own}, indent=1, ensure_ascii=False)
    with writing(path):
        write_atomically(path, text.encode(errors="replace"))


def read_document(path: Path) -> Row:
    """Read a document that `write_document` wrote.

    Raises:
      DamagedError: it is no JSON object, or not what was written.
      FileNotFoundError, NotADirectoryError: it is not there.
    """
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(str(error)) from None
    if not isinstance(data, dict):
        raise DamagedError(f"it is a {type(data).__name__}")
    own = data.pop("digest", None)
    if own is not None and own != digest(json.dumps(data).encode(errors="replace")):
        raise DamagedError("its digest differs")
    return data


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, a file that cannot be written is one clear message.

    Raises:
      UserError: the file, and what the system says.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; finished runs are kept: mend this, and run again"
        ) from error
