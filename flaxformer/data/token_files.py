"""Folder of prepared tokens: memory-mapped arrays and their description.

train.bin, validation.bin: token ids one after another, as little-endian unsigned integers of data.json's `dtype`.
train.documents.npy, validation.documents.npy: int64 [documents + 1], the index at which each document starts, and the
  number of tokens.
tokenizer.json: the tokenizer; absent if tokens are bytes.
data.json: format; dtype; vocabulary; counts; whether documents are pairs of a line and its translation; the names of
  the sources; size and digests of every file.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np

from flaxformer.system.digests import read_document
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path

FORMAT = "flaxformer tokens 2"
SIDES = ("train", "validation")
FULLY_CHECKED = 2**28
"""Size in bytes up to which every byte of a file is checked each time it is opened, which takes under a second."""
SAMPLES, SAMPLE = 16, 2**20
"""Number of evenly spaced samples that are checked of a larger file, and bytes per sample."""


class FileDescription(TypedDict):
    """Entry of a file in data.json."""

    bytes: int
    sha256: str
    sampled_sha256: str
    """Digest of the samples."""


class TextSize(TypedDict):
    """Size and digest of a text, in bytes."""

    bytes: int
    sha256: str


class Description(TypedDict):
    """Content of data.json."""

    format: str
    pairs: bool
    dtype: str
    vocabulary: int
    end: int | None
    """Id of the token that ends a document."""
    tokens: dict[str, int]
    """Number of tokens by side."""
    documents: dict[str, int]
    """Number of documents by side."""
    texts: NotRequired[dict[str, TextSize]]
    """Texts of the documents by side, one after another; absent where only the tokens are known."""
    sources: list[str]
    source_sha256: str
    recipe: dict[str, object]
    """Arguments of `prepare`."""
    files: dict[str, FileDescription]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFolder:
    """Both sides of a prepared text, memory-mapped, with the starts of their documents and the content of data.json."""

    path: Path
    train: np.ndarray
    validation: np.ndarray
    train_documents: np.ndarray
    validation_documents: np.ndarray
    description: Description

    @property
    def vocabulary(self) -> int:
        """Number of token ids, including that of the end of a document, if there is one."""
        return self.description["vocabulary"]

    @property
    def tokenizer_path(self) -> str | None:
        """Path for `read_tokenizer`; None for bytes."""
        return str(self.path / "tokenizer.json") if "tokenizer.json" in self.description["files"] else None

    def require(self, pairs: bool) -> "TokenFolder":
        """Return the folder if it holds pairs of lines, or, with `pairs` False, a text.

        Raises:
          UserError: the folder holds the other kind.
        """
        if pairs != bool(self.description.get("pairs")):
            kinds = ("a text, which TokenFiles reads", "pairs, which PairedTokens reads")
            raise UserError(f"path is '{self.path}', which holds {kinds[not pairs]}; expected {kinds[pairs]}")
        return self

    def text_size(self, side: str) -> TextSize:
        """Return the size and the digest of the text of a side.

        Raises:
          UserError: data.json does not have them.
        """
        size = self.description.get("texts", {}).get(side)
        if size is None or size["bytes"] < 1:
            raise UserError(f"path is '{self.path}', whose data.json has no size of the texts: prepare the data again")
        return size

    def fingerprint(self) -> dict[str, object]:
        """Return the digest of every file and the number of tokens, which identify the data."""
        digests = {f"{name}_sha256": file["sha256"] for name, file in self.description["files"].items()}
        return digests | {f"{side}_tokens": count for side, count in self.description["tokens"].items()}


@remembered
def open_tokens(path: str) -> TokenFolder:
    """Open a folder of tokens, and check data.json and the size and digest of every file.

    Files up to 256 MiB are read fully; of larger ones, 16 samples of 1 MiB. The result is cached:
    `open_tokens.__wrapped__(path)` opens and checks again, `verify(path)` reads all files fully.

    Raises:
      UserError: no such folder, a damaged or missing file, or a token outside the vocabulary; the message names it.
    """
    return _open(path, fully=False)


def verify(path: str) -> None:
    """Check every byte of every file of a folder.

    Raises:
      UserError: as `open_tokens`.
    """
    _open(path, fully=True)


def _open(path: str, fully: bool) -> TokenFolder:
    root = local_path(path)
    description = read_description(root)
    dtype = np.dtype(description["dtype"]).newbyteorder("<")
    for name, expected in description["files"].items():
        _check_file(root / name, expected, fully)
    tokens = {side: np.memmap(root / f"{side}.bin", dtype, mode="r") for side in SIDES}
    documents = {side: np.load(root / f"{side}.documents.npy", mmap_mode="r") for side in SIDES}
    for side in SIDES:
        name, starts = f"{root}/{side}", documents[side]
        if tokens[side].size != description["tokens"][side]:
            expected_size = description["tokens"][side]
            raise UserError(f"{name}.bin has {tokens[side].size} tokens; expected {expected_size}, as in data.json")
        if starts[0] != 0 or starts[-1] != tokens[side].size:
            ends = f"{starts[0]} to {starts[-1]}"
            raise UserError(f"{name}.documents.npy goes from {ends}; expected 0 to {tokens[side].size}")
        slices = _slices_to_check(tokens[side].size, dtype.itemsize, fully)
        largest = max(int(tokens[side][chunk].max()) for chunk in slices)
        if largest >= (vocabulary := description["vocabulary"]):
            raise UserError(f"{name}.bin has the token {largest}; expected ids below vocabulary {vocabulary}")
    return TokenFolder(
        root, tokens["train"], tokens["validation"], documents["train"], documents["validation"], description
    )


def read_description(root: Path) -> Description:
    """Read data.json.

    Raises:
      UserError: the file is missing or damaged.
    """
    file = root / "data.json"
    if not file.is_file():
        raise UserError(f"path is '{root}', which has no data.json; expected a folder that `prepare` wrote")
    try:
        data = read_document(file)
        file_format = data["format"]
        kinds = {"dtype": str, "vocabulary": int, "tokens": dict, "files": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(data[name], kind)]
        expected = {f"{side}{end}" for side in SIDES for end in (".bin", ".documents.npy")}
        if file_format != FORMAT or wrong or not expected <= set(data["files"]) or set(data["tokens"]) != set(SIDES):
            raise ValueError(f"format is {file_format!r}, wrong are {wrong}")
        for size in data.get("texts", {}).values():
            if type(size["bytes"]) is not int or not isinstance(size["sha256"], str):
                raise ValueError(f"texts is {data['texts']!r}")
        if data["dtype"] not in ("uint8", "uint16", "uint32"):
            raise ValueError(f"dtype is {data['dtype']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}); expected format '{FORMAT}', as `prepare` writes it") from None
    return cast(Description, data)


def describe_file(file: Path) -> FileDescription:
    """Return a file's entry in data.json."""
    return {
        "bytes": file.stat().st_size,
        "sha256": _digest(file, fully=True),
        "sampled_sha256": _digest(file, fully=False),
    }


def _check_file(file: Path, expected: FileDescription, fully: bool) -> None:
    if not file.is_file():
        raise UserError(f"{file} is missing; data.json names it: prepare the data again")
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise UserError(f"{file} has {size} bytes; expected {expected['bytes']}: it is damaged, prepare the data again")
    fully = fully or size <= FULLY_CHECKED
    if _digest(file, fully) != expected["sha256" if fully else "sampled_sha256"]:
        raise UserError(f"{file} has another digest than in data.json: it is damaged, prepare the data again")


def _digest(file: Path, fully: bool) -> str:
    size, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as opened:
        if fully:
            return hashlib.file_digest(opened, "sha256").hexdigest()
        for at in _sample_starts(size):
            opened.seek(at)
            digest.update(opened.read(SAMPLE))
    return digest.hexdigest()


def _sample_starts(size: int) -> list[int]:
    return np.linspace(0, max(size - SAMPLE, 0), SAMPLES).astype(int).tolist()


def _slices_to_check(count: int, itemsize: int, fully: bool) -> list[slice]:
    """Return slices of the tokens to check: all, or those of the samples."""
    if fully or count * itemsize <= FULLY_CHECKED:
        return [slice(at, at + SAMPLE) for at in range(0, count, SAMPLE)]
    return [slice(at // itemsize, (at + SAMPLE) // itemsize) for at in _sample_starts(count * itemsize)]
