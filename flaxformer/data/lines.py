r"""Lines, characters and rows of text files: one rule each for all readers.

A line ends at "\n". White space at both ends of a line, such as the "\r" of Windows, is not part of a sentence; a "\r"
within a line, and Unicode's separators, are characters like others. A byte order mark at the head of a file is no part
of its text. Text is UTF-8 where characters are read; bytes that are not UTF-8, and halves of surrogate pairs in JSON,
are refused with their place.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from flaxformer.data.compressed import open_bytes, suffix_of
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.json_reader import parse_json

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Mark that some programs write at the head of a UTF-8 file."""
STRUCTURED = {
    ".csv": "a table",
    ".tsv": "a table",
    ".json": "JSON",
    ".jsonl": "rows of JSON",
    ".ndjson": "rows of JSON",
    ".parquet": "a table",
    ".arrow": "a table",
    ".feather": "a table",
    ".xlsx": "a table",
}
"""Kinds of files that are not plain text, by suffix."""


def text_start(file: Path) -> int:
    """Return the place of the first byte of a file's text: 3 behind a byte order mark, else 0."""
    with open_bytes(file) as opened:
        return len(BYTE_ORDER_MARK) if opened.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file without white space at their ends, decompressed if its name says so."""
    with open_bytes(file, text_start(file)) as lines:
        yield from map(bytes.strip, lines)


def read_line_pairs(
    source: Path, target: Path, is_text: bool, names: tuple[str, str] = ("source", "target")
) -> Iterator[tuple[bytes, bytes]]:
    """Yield line i of the first file with line i of the second.

    Args:
      is_text: check that lines are UTF-8.
      names: of both files in messages.

    Raises:
      UserError: a file is missing, they have different numbers of lines, or a line is not UTF-8.
    """
    files = (source, target)
    for name, file in zip(names, files, strict=True):
        if not file.is_file():
            raise UserError(f"{name} is '{file}', which is not a file; expected text with one sentence per line")
        refuse_structured(file, "text with one sentence per line")
    for number, (first, second) in enumerate(itertools.zip_longest(read_lines(source), read_lines(target)), 1):
        if first is None or second is None:
            longer, shorter = files if second is None else files[::-1]
            raise UserError(f"{longer} has a line {number} and {shorter} has not; expected equal numbers of lines")
        if is_text:
            decode_utf8(first, str(source), line=number)
            decode_utf8(second, str(target), line=number)
        yield first, second


def decode_utf8(
    data: bytes, where: str, *, offset: int = 0, line: int = 1, expected: str = "UTF-8 text, or bytes as tokens"
) -> str:
    """Return the text of UTF-8 bytes.

    Args:
      where: the file, or another name of the text.
      offset, line: number of bytes before the data, and the number of their first line.
      expected: for the message.

    Raises:
      UserError: a byte is not UTF-8; the message has its offset and its line.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{where}, line {at}: byte 0x{data[error.start]:02x} at offset {offset + error.start} is not UTF-8; "
            f"expected {expected}"
        ) from None


def character_boundary(following: bytes) -> int:
    """Return the number of bytes to the next beginning of a UTF-8 character: 0 to 3, or 0 if the data are not UTF-8."""
    count = len(following[:4]) - len(following[:4].lstrip(bytes(range(0x80, 0xC0))))
    return count if count <= 3 else 0


def check_characters(text: str, where: str) -> str:
    """Return a text that has no half of a surrogate pair, which JSON can name and UTF-8 cannot.

    Raises:
      UserError: it has one.
    """
    half = next((place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if half is not None:
        raise UserError(
            f"{where} has half of a surrogate pair, \\u{ord(text[half]):x}, at character {half}; expected text"
        )
    return text


def parse_json_object(line: bytes, where: str) -> Mapping[str, object]:
    """Return the JSON object of a line.

    Raises:
      UserError: the line is not one.
    """
    try:
        row = parse_json(line)
    except ValueError as error:  # not JSON, not UTF-8, or nested too deeply
        raise UserError(f"{where}: expected a JSON object, but: {error}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is {str(row)[:40]!r}; expected a JSON object")
    return row


class MissingNameError(UserError):
    """A row has no such field, or a table no such column."""


def check_names(names: Collection[str], required: Iterable[str], where: str, noun: str = "field") -> None:
    """Raise MissingNameError if a required name is not among those of a row's fields, or of a table's columns."""
    for name in required:
        if name not in names:
            listed = did_you_mean(name, [str(other) for other in names]) if names else "; it has: none"
            raise MissingNameError(f"{where} has no {noun} '{name}'{listed}")


def text_field(row: Mapping[str, object], name: str, where: str, dropped: Iterable[str] | None = None) -> str:
    """Return a field of a row that holds text.

    Args:
      dropped: names of the other fields that may be left out, "*" for all; None for all too.

    Raises:
      UserError: the row has no such field, it is not text, or the row has a field that is not dropped.
    """
    check_names(row, [name], where)
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: field '{name}' is {str(value)[:40]!r}; expected text")
    left_out = ("*",) if dropped is None else tuple(dropped)
    unread = [] if "*" in left_out else [str(other) for other in row if other not in (name, *left_out)]
    if unread:
        raise UserError(
            f"{where} has {', '.join(map(repr, unread))} beside the text in '{name}'; expected to be told to leave "
            f"that out: --drop {','.join((*left_out, *unread))}, or --drop '*' for all other fields; to learn a label, "
            f"give the file to task=TextLabels(path=…, text='{name}', label=…)"
        )
    return check_characters(value, f"{where}: field '{name}'")


def refuse_structured(file: Path, expected: str) -> None:
    """Refuse a file whose suffix says that its content is not plain text.

    Raises:
      UserError: it is such a file.
    """
    if kind := STRUCTURED.get(suffix_of(file).lower()):
        raise UserError(
            f"'{file}' is {kind} by its name; expected {expected}. CSV, TSV, JSON lines and Parquet are read by "
            "`flaxformer prepare FILE OUTPUT`, which takes the text of each row, with labels by TextLabels(path=…, "
            "text=…, label=…), and as pairs by Pairs(path=…, source=…, target=…); to learn a file as it is, end its "
            "name in .txt"
        )
