"""A folder of tokens: `data.json` says what is in it, and memory-mapped arrays hold it.

train.bin, validation.bin: token ids one after another, as little-endian unsigned integers of data.json's `dtype`.
train.documents.npy, validation.documents.npy: int64 [documents + 1], where each document starts, and the end.
tokenizer.json: the tokenizer, where a token is not a byte.
data.json: format; dtype; vocabulary; counts; whether documents come in pairs, a line and the line that translates it;
  the names of the sources; size and digests of every file.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer.struct import UserError

FORMAT = "flaxformer tokens 1"
SIDES = ("train", "validation")
CHECKED_WHOLE = 2**28
"""Bytes up to which every byte of a file is checked each time it is opened: under a second."""
SAMPLES, SAMPLE = 16, 2**20
"""Places checked of a larger file, evenly from the first to the last, and bytes at each."""


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFolder:
    """Both sides of a prepared text, memory-mapped, where their documents start, and data.json."""

    path: Path
    train: np.ndarray
    validation: np.ndarray
    train_documents: np.ndarray
    validation_documents: np.ndarray
    about: dict[str, Any]

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, the end of a document among them where there is one."""
        return self.about["vocabulary"]

    @property
    def tokenizer_path(self) -> str | None:
        """The file that `tokenizer` reads; None for bytes."""
        return str(self.path / "tokenizer.json") if "tokenizer.json" in self.about["files"] else None

    def holding(self, pairs: bool) -> "TokenFolder":
        """The folder itself, if what it holds is pairs of lines, or is not.

        Raises:
          UserError: it is otherwise.
        """
        if pairs != bool(self.about.get("pairs")):
            kinds = ("a text, which TokenFiles reads", "pairs, which PairedTokens reads")
            raise UserError(f"path is '{self.path}', which holds {kinds[not pairs]}; expected {kinds[pairs]}")
        return self

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data: the digest of every file, and the number of tokens."""
        digests = {f"{name}_sha256": file["sha256"] for name, file in self.about["files"].items()}
        return digests | {f"{side}_tokens": count for side, count in self.about["tokens"].items()}


@functools.cache
def open_tokens(path: str) -> TokenFolder:
    """The folder at a path, checked: data.json, the size of every file, and its digest.

    Every byte is read of files up to 256 MiB; of larger ones, the 16 samples that data.json has a digest of:
    `open_tokens.__wrapped__(path)` opens again, `verify(path)` reads all.

    Raises:
      UserError: no such folder, a damaged or missing file, a token outside the vocabulary; the message names it.
    """
    return _opened(path, whole=False)


def verify(path: str) -> None:
    """Read every byte of every file of a folder, whatever its size.

    Raises:
      UserError: as `open_tokens`.
    """
    _opened(path, whole=True)


def _opened(path: str, whole: bool) -> TokenFolder:
    root = Path(path).expanduser()
    about = read_about(root)
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    for name, expected in about["files"].items():
        _check(root / name, expected, whole)
    tokens = {side: np.memmap(root / f"{side}.bin", dtype, mode="r") for side in SIDES}
    documents = {side: np.load(root / f"{side}.documents.npy", mmap_mode="r") for side in SIDES}
    for side in SIDES:
        name, starts = f"{root}/{side}", documents[side]
        if tokens[side].size != about["tokens"][side]:
            raise UserError(f"{name}.bin has {tokens[side].size} tokens; data.json says {about['tokens'][side]}")
        if starts[0] != 0 or starts[-1] != tokens[side].size:
            ends = f"{starts[0]} to {starts[-1]}"
            raise UserError(f"{name}.documents.npy goes from {ends}; expected 0 to {tokens[side].size}")
        largest = max(int(tokens[side][at].max()) for at in _places(tokens[side].size, dtype.itemsize, whole))
        if largest >= about["vocabulary"]:
            raise UserError(f"{name}.bin has the token {largest}; expected ids below vocabulary {about['vocabulary']}")
    return TokenFolder(root, tokens["train"], tokens["validation"], documents["train"], documents["validation"], about)


def read_about(root: Path) -> dict[str, Any]:
    """Return the contents of data.json.

    Raises:
      UserError: there is none, or it is damaged.
    """
    file = root / "data.json"
    if not file.is_file():
        raise UserError(f"path is '{root}', which has no data.json; expected a folder that `prepare` wrote")
    try:
        about = json.loads(file.read_bytes())
        found = about["format"]
        kinds = {"dtype": str, "vocabulary": int, "tokens": dict, "files": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(about[name], kind)]
        wanted = {f"{side}{end}" for side in SIDES for end in (".bin", ".documents.npy")}
        if found != FORMAT or wrong or not wanted <= set(about["files"]) or set(about["tokens"]) != set(SIDES):
            raise ValueError(f"format is {found!r}, wrong are {wrong}")
        if about["dtype"] not in ("uint8", "uint16", "uint32"):
            raise ValueError(f"dtype is {about['dtype']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}); expected format '{FORMAT}', as `prepare` writes it") from None
    return about


def describe(file: Path) -> dict[str, Any]:
    """Return a file's entry in data.json: its size in bytes, the digest of all of it, and that of samples of it."""
    return {"bytes": file.stat().st_size, "sha256": _digest(file, True), "sampled_sha256": _digest(file, False)}


def _check(file: Path, expected: dict[str, Any], whole: bool) -> None:
    if not file.is_file():
        raise UserError(f"{file} is missing; data.json names it: prepare the data again")
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise UserError(f"{file} has {size} bytes; expected {expected['bytes']}: it is damaged, prepare the data again")
    whole = whole or size <= CHECKED_WHOLE
    if _digest(file, whole) != expected["sha256" if whole else "sampled_sha256"]:
        raise UserError(f"{file} has another digest than data.json says: it is damaged, prepare the data again")


def _digest(file: Path, whole: bool) -> str:
    size, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as opened:
        if whole:
            return hashlib.file_digest(opened, "sha256").hexdigest()
        for at in _samples(size):
            opened.seek(at)
            digest.update(opened.read(SAMPLE))
    return digest.hexdigest()


def _samples(size: int) -> list[int]:
    return np.linspace(0, max(size - SAMPLE, 0), SAMPLES).astype(int).tolist()


def _places(count: int, itemsize: int, whole: bool) -> list[slice]:
    """Tokens to look at: all, or those of the samples."""
    if whole or count * itemsize <= CHECKED_WHOLE:
        return [slice(at, at + SAMPLE) for at in range(0, count, SAMPLE)]
    return [slice(at // itemsize, (at + SAMPLE) // itemsize) for at in _samples(count * itemsize)]
