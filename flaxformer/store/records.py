"""Files of a study with digests: Parquet tables, and lines and documents of JSON (`flaxformer.digests`)."""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from flaxformer import digests
from flaxformer.digests import DamagedError, JsonObject, digest
from flaxformer.files import write_atomically
from flaxformer.store.rows import COLUMNS
from flaxformer.struct import UserError

SEAL = re.compile(rb"flaxformer:[0-9a-f]{32}")
"""Place of a Parquet file's digest in its metadata; the digest is of the file with zeros there."""
UNSEALED = b"flaxformer:" + b"0" * 32


_POLARS_TYPES = {
    column.name: {"text": pl.String(), "integer": pl.Int64(), "number": pl.Float64()}.get(
        column.kind, pl.List(pl.Int64())
    )
    for column in COLUMNS
}
"""Types of the fixed columns of results, which a column of nulls alone would not show."""


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


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, or other flat mappings, as one Parquet file with its digest."""
    buffer = io.BytesIO()
    table = pl.DataFrame([dict(row) for row in rows], infer_schema_length=None, schema_overrides=_POLARS_TYPES)
    table.write_parquet(buffer, metadata={"digest": UNSEALED.decode()})
    data = buffer.getvalue()
    with writing(path):
        write_atomically(path, data.replace(UNSEALED, b"flaxformer:" + digest(data, 16).encode()))


def read_table(path: Path) -> list[JsonObject]:
    """The rows of a Parquet file.

    Raises:
      DamagedError: it has no digest, or is not what was written.
    """
    data = path.read_bytes()
    if not (data[:4] == data[-4:] == b"PAR1"):
        raise DamagedError("it is no whole Parquet file")
    seals = set(SEAL.findall(data))
    if not seals:
        raise DamagedError("it has no digest")
    if len(seals) == 1 and b"flaxformer:" + digest(SEAL.sub(UNSEALED, data), 16).encode() not in seals:
        raise DamagedError("its digest differs")
    try:
        return pl.read_parquet(io.BytesIO(data)).to_dicts()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None


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
