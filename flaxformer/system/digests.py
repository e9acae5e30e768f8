"""Files with digests: documents and lines of JSON whose damage is detected when they are read.

A digest detects bad disks, torn writes and edits; one that is missing is damage too. It does not protect against
deliberate changes. Nothing is ever unpickled or evaluated.
"""

import errno
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from flaxformer.system.files import flush, open_to_append, write_atomically
from flaxformer.system.json_reader import parse_json

JsonObject = dict[str, Any]
"""An object of JSON."""
CHANGED_END = re.compile(rb'(?s), "digest": "[0-9a-f]{16}"\}.')
"""A whole line with another end than the one that was written; a kill leaves less."""
LINE = re.compile(rb'(?s)(\{.*), "digest": "([0-9a-f]{16})"\}')


READS = 10
"""Number of times that a file which is replaced while it is read is read."""
P = ParamSpec("P")
T = TypeVar("T")


class DamagedError(ValueError):
    """The data that were read differ from those that were written."""


class FormError(DamagedError):
    """The data are those that were written, and not of the form that is expected."""


def read_again(read: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that reads a file, so that it begins again if the file is replaced or removed meanwhile.

    A network file system may then report a stale handle (ESTALE), where a local one would go on with the old content.
    """

    @functools.wraps(read)
    def repeat(*arguments: P.args, **options: P.kwargs) -> T:
        for _ in range(READS - 1):
            try:
                return read(*arguments, **options)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
        return read(*arguments, **options)

    return repeat


def digest(data: bytes | memoryview, size: int = 8) -> str:
    """Data in 2 × `size` hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def line(row: Mapping[str, object]) -> bytes:
    """A row as one line of JSON, with the digest of the rest as its last field."""
    text = json.dumps(dict(row), ensure_ascii=False).encode(errors="replace")
    return text[:-1] + b', "digest": "' + digest(text).encode() + b'"}\n'


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Add a row as one line; it is on the disk when this returns, or the file is as it was.

    If the last line was cut short, the row begins a new one.

    Raises:
      OSError: it cannot be written, such as on a full disk.
      UserError: the file is a symbolic link, or is below one in an output folder.
    """
    data = line(row)
    file = open_to_append(path)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
            if not size:
                flush(path.parent)  # the name of a new file
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


@read_again
def read_or_empty(path: Path) -> bytes:
    """The content of a file; nothing if there is none, if it is removed meanwhile, or if it is not a file."""
    try:
        return b"" if is_no_file(path) else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


@read_again
def lines(path: Path) -> tuple[list[JsonObject], list[str]]:
    """The rows of a file's whole lines, and what is wrong with the lines that are not rows.

    A last line without its end was cut short by a kill and does not count.
    """
    if is_no_file(path):
        return [], ["it is not a file"]
    rows, wrong = [], []
    try:
        for row, what in iterate_lines(path):
            if row is None:
                wrong.append(what)
            else:
                rows.append(row)
    except (FileNotFoundError, NotADirectoryError):  # it may be removed meanwhile
        return [], []
    return rows, wrong


def is_no_file(path: Path) -> bool:
    """True if there is something else than a file, such as a folder, or a pipe, whose end may never come."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def iterate_lines(path: Path) -> Iterator[tuple[JsonObject | None, str]]:
    """Yield the row of each whole line with "", or None with what is wrong with it; one line is in memory at a time.

    Raises:
      FileNotFoundError: the file is not there.
      OSError: it cannot be read, or (ESTALE) is replaced meanwhile on a network file system.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                if CHANGED_END.search(text):
                    yield None, f"line {number}: its end was changed"
                return
            try:
                if text != b"\n":
                    yield parse_line(text[:-1]), ""
            except ValueError as error:
                yield None, f"line {number}: {error}"


def parse_line(line: bytes) -> JsonObject:
    """Return the row of one line without its end.

    Raises:
      DamagedError: it has no digest, or another one than its content.
      ValueError: it is not JSON.
    """
    match = LINE.fullmatch(line)
    if match is None:
        raise DamagedError("it has no digest")
    content = match[1] + b"}"
    if digest(content).encode() != match[2]:
        raise DamagedError("its digest differs")
    row = parse_json(content)
    if not isinstance(row, dict):
        raise DamagedError("it is not a row")
    return row


def document(data: JsonObject) -> bytes:
    """Plain data as readable JSON, with the digest of the data as its last field."""
    text = json.dumps(data | {"digest": _digest_of(data)}, indent=1, ensure_ascii=False)
    return text.encode(errors="replace")


def write_document(path: Path, data: JsonObject) -> None:
    """Write plain data as one readable JSON file with its digest.

    Raises:
      OSError: it cannot be written.
    """
    write_atomically(path, document(data))


@read_again
def read_document(path: Path) -> JsonObject:
    """Read a document that `write_document` wrote.

    Raises:
      DamagedError: it is not JSON object, has no digest, or is not what was written.
      OSError: it cannot be read; FileNotFoundError if it is not there.
    """
    if is_no_file(path):
        raise DamagedError("it is not a file")
    return parse_document(path.read_bytes())


def parse_document(text: bytes) -> JsonObject:
    """Return the data of a `document`.

    Raises:
      DamagedError: it is not JSON object, has no digest, or is not what was written.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise DamagedError(str(error)) from None
    if not isinstance(data, dict):
        raise DamagedError(f"it is a {type(data).__name__}")
    digest = data.pop("digest", None)
    if digest is None:
        raise DamagedError("it has no digest")
    if digest != _digest_of(data):
        raise DamagedError("its digest differs")
    return data


def _digest_of(data: JsonObject) -> str:
    return digest(json.dumps(data).encode(errors="replace"))
