"""Text files read as bytes, decompressed on the way where their names end in .gz, .bz2, .xz or .zst."""

import bz2
import contextlib
import gzip
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from flaxformer.system.errors import UserError
from flaxformer.system.extras import library

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
PIECE = 2**20
"""Bytes that are decompressed at a time where they are only counted or skipped."""


def is_compressed(file: Path) -> bool:
    """True if the name of a file ends in the suffix of a compression."""
    return file.suffix in SUFFIXES


def suffix_of(file: Path) -> str:
    """Return the suffix of a file without that of its compression, such as ".jsonl" for rows.jsonl.gz."""
    return Path(file.stem).suffix if is_compressed(file) else file.suffix


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose names, without the suffix of a compression, match a glob pattern.

    Raises:
      UserError: the pattern is malformed, or names files outside the folder.
    """
    if not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UserError(f"pattern is '{pattern}'; expected one of files within the folder, such as **/*.txt")
    try:
        files = {file for end in ("", *SUFFIXES) for file in folder.glob(pattern + end)}
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"pattern is '{pattern}' ({error}); expected one such as **/*.txt") from None
    return sorted(file for file in files if file.is_file())


@contextlib.contextmanager
def open_bytes(file: Path, start: int = 0) -> Iterator[IO[bytes]]:
    """Open a file for reading from byte `start` of its decompressed content.

    Raises:
      UserError: the compressed data is damaged, or the library for .zst is missing.
    """
    if not is_compressed(file):
        with file.open("rb") as opened:
            opened.seek(start)
            yield opened
        return
    opener, errors = _format(file)
    try:
        with opener(file) as opened:
            _read_past(opened, start)
            yield opened
    except errors as error:
        raise UserError(f"{file} cannot be decompressed ({error}); expected a complete {file.suffix} file") from None


def read_bytes(file: Path) -> bytes:
    """Return the decompressed content of a file."""
    with open_bytes(file) as opened:
        return opened.read()


def read_size(file: Path) -> int:
    """Return the number of bytes of the decompressed content of a file."""
    if not is_compressed(file):
        return file.stat().st_size
    with open_bytes(file) as opened:
        return _read_past(opened, None)


def _read_past(opened: IO[bytes], count: int | None) -> int:
    """Read and discard `count` bytes, or all if it is None; return the number of bytes read."""
    done = 0
    while count is None or done < count:
        piece = opened.read(PIECE if count is None else min(PIECE, count - done))
        if not piece:
            break
        done += len(piece)
    return done


def _format(file: Path) -> tuple[Callable[[Path], Any], tuple[type[Exception], ...]]:
    """Return the function that opens a compressed file, and the errors that mean that its data is damaged."""
    match file.suffix:
        case ".gz":
            return gzip.GzipFile, (EOFError, gzip.BadGzipFile, zlib.error)
        case ".bz2":
            return bz2.BZ2File, (EOFError, OSError)
        case ".xz":
            return lzma.LZMAFile, (EOFError, lzma.LZMAError)
    try:
        zstd: Any = importlib.import_module("compression.zstd")  # from Python 3.14 on
    except ImportError:
        zstd = library("backports.zstd", "zstd", f"'{file}'")
    return zstd.ZstdFile, (EOFError, zstd.ZstdError)
