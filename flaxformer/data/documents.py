"""Documents to learn from, read piece by piece: text files, JSONL, Parquet, or a data set of the Hugging Face hub."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flaxformer.data.corpus import tenth
from flaxformer.extras import library
from flaxformer.struct import UserError

PIECE = 2**20
"""Bytes of a text file held at a time; a piece ends at a line's end where there is one."""
ROWS = 1024
"""Rows of a Parquet file held at a time."""
HUB = "hf:"
JSONL = (".jsonl", ".ndjson")


@dataclasses.dataclass(frozen=True)
class Document:
    """One text, which of ten parts of the data it falls in, and its bytes in pieces."""

    name: str
    tenth: int
    pieces: Callable[[], Iterator[bytes]]


@dataclasses.dataclass(frozen=True)
class Texts:
    """Source of documents; iterating reads them in an order that never changes.

    source: a text file, whose last `validation_tenths` become the validation text; a .jsonl (or .ndjson) or .parquet
      file, one document per row; a folder, of whose files those that match `pattern` are read, each by its kind; or
      "hf:owner/name", a data set of the Hugging Face hub (streamed, with its `subset` and `split`).
    target: a second text file, whose line i translates line i of the first; then every line is a document, a line and
      its translation one after the other, both on the side that a hash of the two says.
    field: the field or column with the text, where rows have several.
    utf8: refuse a file that is not UTF-8.

    A text file of a folder is on the side that a hash of its name says, a row on that which a hash of its text says.
    """

    source: str
    target: str | None = None
    field: str = "text"
    pattern: str = "**/*.txt"
    subset: str | None = None
    split: str = "train"
    validation_tenths: int = 1
    utf8: bool = True

    def __iter__(self) -> Iterator[Document]:
        if self.target is not None:
            yield from self._pairs(Path(self.source).expanduser(), Path(self.target).expanduser())
            return
        if self.source.startswith(HUB):
            yield from self._rows(self.source, self._hub())
            return
        root = Path(self.source).expanduser()
        if root.is_file() and root.suffix not in (*JSONL, ".parquet"):
            yield from self._cut(root)
            return
        files = [root] if root.is_file() else sorted(file for file in root.glob(self.pattern) if file.is_file())
        if not files:
            kind = f"has no file matching '{self.pattern}'" if root.is_dir() else "is neither a file nor a folder"
            raise UserError(f"source is '{self.source}', which {kind}; expected text to learn from")
        for file in files:
            yield from self._file(file, file.name if file == root else file.relative_to(root).as_posix())

    def _file(self, file: Path, name: str) -> Iterator[Document]:
        if not file.stat().st_size:
            raise UserError(f"{file} is empty; expected text to learn from")
        if file.suffix in JSONL:
            yield from self._rows(name, _json_lines(file, self.field))
        elif file.suffix == ".parquet":
            yield from self._rows(name, _parquet(file, self.field))
        else:
            yield Document(name, tenth(name.encode()), lambda: self._pieces(file, 0, file.stat().st_size))

    def _cut(self, file: Path) -> Iterator[Document]:
        """A file as two documents, cut between two characters."""
        size = file.stat().st_size
        if not size:
            raise UserError(f"{file} is empty; expected text to learn from")
        cut = size * (10 - self.validation_tenths) // 10
        with file.open("rb") as opened:
            opened.seek(cut)
            following = opened.read(3)
        while self.utf8 and following[:1] and following[0] & 0xC0 == 0x80:
            cut, following = cut + 1, following[1:]
        yield Document(file.name, 9, lambda: self._pieces(file, 0, cut))
        yield Document(file.name, 0, lambda: self._pieces(file, cut, size))

    def _pieces(self, file: Path, start: int, stop: int) -> Iterator[bytes]:
        with file.open("rb") as opened:
            opened.seek(start)
            rest = b""
            while start < stop:
                more = opened.read(min(PIECE, stop - start - len(rest)))
                if not more:
                    raise UserError(f"{file} became shorter while it was read")
                data = rest + more
                end = len(data) if start + len(data) >= stop else data.rfind(b"\n") + 1 or _last_boundary(data)
                if self.utf8:
                    _check_utf8(file, data[:end], start)
                yield data[:end]
                start, rest = start + end, data[end:]

    def _rows(self, name: str, rows: Iterator[str]) -> Iterator[Document]:
        for text in rows:
            data = text.encode()
            yield Document(name, tenth(data), lambda data=data: iter((data,)))  # type: ignore[misc]

    def _pairs(self, *files: Path) -> Iterator[Document]:
        for kind, file in zip(("source", "target"), files, strict=True):
            if not file.is_file():
                raise UserError(f"{kind} is '{file}', which is not a file; expected text, a sentence a line")
        with files[0].open("rb") as first, files[1].open("rb") as second:
            for number, lines in enumerate(itertools.zip_longest(first, second), 1):
                if None in lines:
                    longer, shorter = files if lines[1] is None else files[::-1]
                    raise UserError(
                        f"{longer} has a line {number} and {shorter} has not; expected as many lines in each"
                    )
                pair = [line.strip() for line in lines]
                side = tenth(b"\n".join(pair))
                for file, line in zip(files, pair, strict=True):
                    if self.utf8:
                        _check_utf8(file, line, 0, f"line {number}, ")
                    yield Document(file.name, side, lambda line=line: iter((line,)))  # type: ignore[misc]

    def _hub(self) -> Iterator[str]:
        name = self.source.removeprefix(HUB)
        rows = library("datasets", "datasets", f"source '{self.source}'").load_dataset(
            name, self.subset, split=self.split, streaming=True
        )
        for number, row in enumerate(rows):
            yield _text_of(row, self.field, f"{self.source}, row {number}")


def _last_boundary(data: bytes) -> int:
    """Return where the last character of some UTF-8 begins; its end may be missing."""
    end = len(data) - 1
    while end > len(data) - 4 and end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end or len(data)


def _check_utf8(file: Path, data: bytes, offset: int, where: str = "") -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at offset {offset + error.start}"
        raise UserError(f"{file}: {where}{found} is not UTF-8; expected UTF-8 text, or tokenizer='bytes'") from None


def _json_lines(file: Path, field: str) -> Iterator[str]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # not JSON, or not UTF-8
                raise UserError(f"{file}, line {number}: expected a JSON object, but: {error}") from None
            yield _text_of(row, field, f"{file}, line {number}")


def _parquet(file: Path, field: str) -> Iterator[str]:
    import polars

    try:
        table = polars.scan_parquet(file)
        columns, rows = table.collect_schema().names(), table.select(polars.len()).collect().item()
    except Exception as error:  # many kinds, for a damaged file
        raise UserError(f"{file}: expected a Parquet file, but: {error}") from None
    if field not in columns:
        raise UserError(f"{file} has no column '{field}'; it has: {', '.join(columns)}")
    for start in range(0, rows, ROWS):
        for number, text in enumerate(table.select(field).slice(start, ROWS).collect()[field], start):
            yield _text_of({field: text}, field, f"{file}, row {number}")


def _text_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict) or field not in row:
        has = f"it has: {', '.join(map(str, row))}" if isinstance(row, dict) else f"it is {str(row)[:40]!r}"
        raise UserError(f"{where} has no field '{field}'; {has}")
    if not isinstance(row[field], str):
        raise UserError(f"{where}: field '{field}' is {str(row[field])[:40]!r}; expected text")
    return row[field]
