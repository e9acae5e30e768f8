"""Prepare a text for training jobs: read it once, piece by piece, into a folder of tokens."""

import array
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer.data.documents import Texts
from flaxformer.data.token_files import FORMAT, SIDES, describe, open_tokens, read_about
from flaxformer.data.tokenizer import Tokenizer, character_file, token_dtype, trained_file
from flaxformer.data.tokenizer import tokenizer as read_tokenizer
from flaxformer.struct import UserError


def prepare(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: str | os.PathLike[str] | None = None,
    tokenizer: str = "bytes",
    vocabulary: int | None = None,
    validation_tenths: int = 1,
    end: bool = False,
    field: str = "text",
    pattern: str = "**/*.txt",
    subset: str | None = None,
    split: str = "train",
) -> dict[str, Any]:
    """Write the folder that `TokenFiles` (or `PairedTokens`) reads, and return what its data.json says.

    Texts are streamed: at most a piece, a row, or the rows that Parquet gives at a time are in memory. The folder is
    written beside `output` and renamed, so that it is there whole or not at all; where it is there from the same
    sources in the same way, nothing is written.

    Args:
      source, target, field, pattern, subset, split: see `Texts`.
      tokenizer: "bytes"; "characters", every character of the text; "bpe", byte-level BPE of `vocabulary` tokens,
        trained on the training side; or the path of a tokenizer.json. All but bytes ask for UTF-8.
      vocabulary: how many tokens BPE is to have.
      validation_tenths: how many tenths of the data are held out, 1 to 9.
      end: a token after each document says that it ends; its id is the one after the tokenizer's.

    Raises:
      UserError: what is wrong with the arguments or the sources, by file and place; or `output` holds something else.
    """
    root = Path(output).expanduser()
    if not 1 <= validation_tenths <= 9:
        raise UserError(f"validation_tenths is {validation_tenths}; expected 1 to 9")
    if (tokenizer == "bpe") != (vocabulary is not None):
        raise UserError(f"vocabulary is {vocabulary}; expected a number for tokenizer='bpe', and None for others")
    if target is not None and end:
        raise UserError("end is True; expected False for pairs, to which PairedTokens adds start and end")
    texts = Texts(
        str(source),
        None if target is None else str(target),
        field,
        pattern,
        subset,
        split,
        validation_tenths,
        tokenizer != "bytes",
    )
    recipe: dict[str, Any] = {
        "target": None if target is None else Path(target).name,
        "tokenizer": tokenizer if tokenizer in MADE else Path(tokenizer).name,
        "asked_vocabulary": vocabulary,
        "validation_tenths": validation_tenths,
        "end": end,
        "field": field,
        "pattern": pattern,
        "subset": subset,
        "split": split,
    }
    if tokenizer not in MADE:
        recipe |= read_tokenizer(tokenizer).fingerprint
    if root.exists():
        return _there_already(root, recipe, texts)
    beside = root.with_name(f".{root.name}.{os.getpid()}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        about = _written(beside, texts, tokenizer, vocabulary, end, recipe)
        beside.rename(root)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return about


def _written(
    folder: Path, texts: Texts, tokenizer: str, vocabulary: int | None, end: bool, recipe: dict[str, Any]
) -> dict[str, Any]:
    file = _tokenizer_file(texts, tokenizer, vocabulary)
    if file is not None:
        (folder / "tokenizer.json").write_bytes(file)
    encoding = read_tokenizer.__wrapped__(None if file is None else str(folder / "tokenizer.json"))
    identity, starts = _write_tokens(folder, texts, encoding, end)
    for side in SIDES:
        if starts[side][-1] == 0:
            raise UserError(f"source is '{texts.source}': nothing is on the {side} side; expected more documents")
        np.save(folder / f"{side}.documents.npy", np.frombuffer(starts[side], np.int64))
    files = sorted(file for file in folder.iterdir())
    about = {
        "format": FORMAT,
        "pairs": texts.target is not None,
        "dtype": token_dtype(encoding.vocabulary + end).name,
        "vocabulary": encoding.vocabulary + end,
        "end": encoding.vocabulary if end else None,
        "tokens": {side: starts[side][-1] for side in SIDES},
        "documents": {side: len(starts[side]) - 1 for side in SIDES},
        "sources": identity.names,
        "source_sha256": identity.digest.hexdigest(),
        "recipe": recipe,
        "files": {file.name: describe(file) for file in files},
    }
    (folder / "data.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    for file_ in [*files, folder / "data.json"]:
        with file_.open("rb") as opened:
            os.fsync(opened.fileno())
    return about


class _Identity:
    """The names of the sources and the digest of all that was read from them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.digest = hashlib.sha256()

    def document(self, name: str, tenth: int) -> None:
        if name not in self.names[-2:]:  # pairs are of two files in turn
            self.names.append(name)
        self.digest.update(f"{name} {tenth}\n".encode())


def _write_tokens(
    folder: Path, texts: Texts, encoding: Tokenizer, end: bool
) -> tuple[_Identity, dict[str, "array.array[int]"]]:
    """Both .bin files, and where each document starts in them."""
    dtype = token_dtype(encoding.vocabulary + end).newbyteorder("<")
    identity, starts = _Identity(), {side: array.array("q", [0]) for side in SIDES}
    opened = {side: (folder / f"{side}.bin").open("wb") for side in SIDES}
    try:
        for document in texts:
            identity.document(document.name, document.tenth)
            side = "validation" if document.tenth < texts.validation_tenths else "train"
            written = 0
            for piece in document.pieces():
                identity.digest.update(piece)
                tokens = encoding.encode(piece).astype(dtype)
                opened[side].write(tokens.tobytes())
                written += tokens.size
            if written and end:
                opened[side].write(np.array(encoding.vocabulary, dtype).tobytes())
            if written or texts.target is not None:
                starts[side].append(starts[side][-1] + written + end)
    finally:
        for file in opened.values():
            file.close()
    return identity, starts


def _tokenizer_file(texts: Texts, tokenizer: str, vocabulary: int | None) -> bytes | None:
    """The contents of the tokenizer's file, made from the texts or copied; None for bytes."""
    if tokenizer in MADE:
        return MADE[tokenizer](texts, vocabulary)
    return Path(tokenizer).expanduser().read_bytes()


def _texts(texts: Texts, validation: bool) -> Iterator[str]:
    for document in texts:
        if validation or document.tenth >= texts.validation_tenths:
            yield from (piece.decode() for piece in document.pieces())


MADE: dict[str, Any] = {
    "bytes": lambda texts, vocabulary: None,
    "characters": lambda texts, vocabulary: character_file(_texts(texts, validation=True)),
    "bpe": lambda texts, vocabulary: trained_file(_texts(texts, validation=False), vocabulary),
}
"""Tokenizers that come with the text, by name."""


def _there_already(root: Path, recipe: dict[str, Any], texts: Iterable[Any]) -> dict[str, Any]:
    """Return what is there, if it is what would be written."""
    about = read_about(root)
    differing = {name: (about["recipe"].get(name), value) for name, value in recipe.items()}
    differences = [f"{name} {old} there, {new} asked" for name, (old, new) in differing.items() if old != new]
    identity = _Identity()
    for document in () if differences else texts:
        identity.document(document.name, document.tenth)
        for piece in document.pieces():
            identity.digest.update(piece)
    if differences or identity.digest.hexdigest() != about["source_sha256"]:
        why = "; ".join(differences) or "the sources have changed"
        raise UserError(f"output is '{root}', which holds other data ({why}); expected a new place, or remove it")
    open_tokens.__wrapped__(str(root))
    return about
