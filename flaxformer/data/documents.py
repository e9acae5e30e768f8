"""Documents, read in pieces of bounded size from text files, tables, or a data set of the Hugging Face hub."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flaxformer.data.compressed import matching, open_bytes, read_size, suffix_of
from flaxformer.data.corpus import tenth
from flaxformer.data.lines import (
    MissingNameError,
    character_boundary,
    decode_utf8,
    read_line_pairs,
    refuse_structured,
    text_field,
    text_start,
)
from flaxformer.data.rows import HUB_FILES, READERS, find_table, list_hub_files, read_rows
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.remote_data import local_path

PIECE = 2**20
"""Bytes of a text file in memory at a time; a piece ends at the end of a line, if it has one."""
HUB = "hf:"
READ_OF = {
    "two text files": (),
    "a text file": (),
    "a table": ("field", "drop"),
    "several files": ("field", "drop"),
    "a folder": ("field", "drop", "pattern"),
    "a data set of the hub": ("field", "drop", "subset", "split"),
}
"""Arguments of `Texts`, of those with a default, that each kind of source reads."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A text: the name of its source, which of ten parts of the data it falls in, and its bytes in pieces."""

    name: str
    tenth: int
    pieces: Callable[[], Iterator[bytes]]


@dataclasses.dataclass(frozen=True)
class Texts:
    """Source of documents, which iteration yields in a fixed order.

    Args:
      source: a text file, whose last `validation_tenths` become the validation text; a table of `data.rows` with one
        document per row; a folder, of which files that match `pattern` are read, by their suffix; "hf:owner/name", a
        data set of the Hugging Face hub (streamed, with its `subset` and `split`); or a file of one,
        "hf://datasets/owner/name/file". The name of a file may have *, for several files, such as the parts of a table.
      target: a second text file, whose line i translates line i of the first. Each line is then a document, followed by
        its translation, and a hash of both decides their side.
      field: the field or column with the text.
      drop: other fields or columns, which are left out; "*" for all. A row with any further field is refused.
      pattern: glob pattern of the files in a folder, without a compression's suffix.
      subset, split: of a data set of the hub.
      validation_tenths: tenths of the data for validation.
      utf8: refuse files that are not UTF-8.

    Files that end in .gz, .bz2, .xz or .zst are decompressed while they are read.

    The side of a text file in a folder is decided by a hash of its name, that of a row by a hash of its text.
    """

    source: str
    target: str | None = None
    field: str = "text"
    drop: Sequence[str] = ()
    pattern: str = "**/*.txt"
    subset: str | None = None
    split: str = "train"
    validation_tenths: int = 1
    utf8: bool = True

    def __iter__(self) -> Iterator[Document]:
        if self.target is not None:
            self._check_read("two text files")
            yield from self._read_pairs(local_path(self.source, "source"), local_path(self.target, "target"))
            return
        is_hub_file = self.source.startswith(HUB_FILES)
        if "*" in self.source and not Path(self.source).exists():
            self._check_read("several files")
            yield from self._read_matching(is_hub_file)
            return
        if self.source.startswith(HUB) and not is_hub_file:
            self._check_read("a data set of the hub")
            yield from self._row_documents(self.source, self._read_hub())
            return
        root = find_table(self.source, "source") if is_hub_file else local_path(self.source, "source")
        if root.is_file() and suffix_of(root).lower() not in READERS:
            self._check_read("a text file")
            yield from self._split_file(root)
            return
        self._check_read("a table" if root.is_file() else "a folder")
        files = [root] if root.is_file() else matching(root, self.pattern)
        if not files:
            kind = f"has no file matching '{self.pattern}'" if root.is_dir() else "is neither a file nor a folder"
            raise UserError(f"source is '{self.source}', which {kind}; expected text to learn from")
        for file in files:
            yield from self._read_file(file, file.name if file == root else file.relative_to(root).as_posix())

    def _check_read(self, kind: str) -> None:
        """Refuse an argument that this kind of source does not read."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in dict.fromkeys(itertools.chain(*READ_OF.values())):
            if name not in READ_OF[kind] and (value := getattr(self, name)) != defaults[name]:
                raise UserError(
                    f"{name} is {value!r}, and source '{self.source}' is {kind}, which has none; expected no {name}"
                )

    def _read_matching(self, is_hub_file: bool) -> Iterator[Document]:
        """Yield the documents of the files that match `source`, in the order of their names."""
        if is_hub_file:
            urls = list_hub_files(self.source, "source")
            paths = ((url.rpartition("/")[2], find_table(url, "source")) for url in urls)
        else:
            fixed = self.source[: self.source.index("*")].rpartition("/")[0]
            root = local_path(fixed or ("/" if self.source.startswith("/") else "."), "source")
            files = matching(root, self.source[len(fixed) :].lstrip("/"))
            paths = ((file.relative_to(root).as_posix(), file) for file in files)
        has_any = False
        for name, file in paths:
            has_any = True
            yield from self._read_file(file, name)
        if not has_any:
            raise UserError(f"source is '{self.source}', which matches no file; expected text to learn from")

    def _read_file(self, file: Path, name: str) -> Iterator[Document]:
        if not read_size(file):
            raise UserError(f"{file} is empty; expected text to learn from")
        if suffix_of(file).lower() in READERS:
            yield from self._row_documents(name, self._read_texts(file))
        else:
            refuse_structured(file, "text or a table that `prepare` reads")
            pieces = functools.partial(self._read_pieces, file, text_start(file), read_size(file))
            yield Document(name, tenth(name.encode()), pieces)

    def _read_texts(self, file: Path) -> Iterator[str]:
        """Yield the text of each row of a table."""
        try:
            for row in read_rows(file, [self.field]):
                yield text_field(row.values, self.field, row.where, self.drop)
        except MissingNameError as error:
            raise UserError(f"{error}; name that of the texts with --field NAME") from None

    def _split_file(self, file: Path) -> Iterator[Document]:
        """Yield a file as two documents, split between two characters."""
        refuse_structured(file, "text or a table that `prepare` reads")
        start, size = text_start(file), read_size(file)
        if size == start:
            raise UserError(f"{file} is empty; expected text to learn from")
        cut = start + (size - start) * (10 - self.validation_tenths) // 10
        with open_bytes(file, cut) as opened:
            cut += character_boundary(opened.read(4))
        yield Document(file.name, 9, lambda: self._read_pieces(file, start, cut))
        yield Document(file.name, 0, lambda: self._read_pieces(file, cut, size))

    def _read_pieces(self, file: Path, start: int, stop: int) -> Iterator[bytes]:
        with open_bytes(file, start) as opened:
            incomplete, line = b"", 1
            while start < stop:
                more = opened.read(min(PIECE, stop - start - len(incomplete)))
                if not more:
                    raise UserError(f"{file} became shorter while it was read")
                data = incomplete + more
                end = len(data) if start + len(data) >= stop else data.rfind(b"\n") + 1 or _last_boundary(data)
                if self.utf8:
                    decode_utf8(data[:end], str(file), offset=start, line=line)
                yield data[:end]
                start, incomplete, line = start + end, data[end:], line + data.count(b"\n", 0, end)

    def _row_documents(self, name: str, rows: Iterator[str]) -> Iterator[Document]:
        for text in rows:
            data = text.encode()
            yield Document(name, tenth(data), functools.partial(iter, (data,)))

    def _read_pairs(self, source: Path, target: Path) -> Iterator[Document]:
        for pair in read_line_pairs(source, target, is_text=self.utf8):
            side = tenth(b"\n".join(pair))
            for file, line in zip((source, target), pair, strict=True):
                yield Document(file.name, side, functools.partial(iter, (line,)))

    def _read_hub(self) -> Iterator[str]:
        name = self.source.removeprefix(HUB)
        rows = library("datasets", "datasets", f"source '{self.source}'").load_dataset(
            name, self.subset, split=self.split, streaming=True
        )
        for number, row in enumerate(rows):
            yield text_field(row, self.field, f"{self.source}, row {number}", self.drop)


def _last_boundary(data: bytes) -> int:
    """Return the index at which the last character of UTF-8 data begins; the character may be incomplete."""
    end = len(data) - 1
    while end > len(data) - 4 and end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end or len(data)
