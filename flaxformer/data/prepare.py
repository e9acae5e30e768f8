"""Preparation of texts for training: tokenize them once, in pieces of bounded size, into a folder."""

import array
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from flaxformer.data.documents import Document, Texts
from flaxformer.data.token_files import (
    FORMAT,
    SIDES,
    Description,
    TextSize,
    describe_file,
    open_tokens,
    read_description,
)
from flaxformer.data.tokenizer import Tokenizer, make_character_file, read_tokenizer, token_dtype, train_bpe
from flaxformer.system import objects
from flaxformer.system.bounds import check_number
from flaxformer.system.digests import write_document
from flaxformer.system.errors import UserError
from flaxformer.system.links import check_not_dangling
from flaxformer.system.objects import url_of
from flaxformer.system.remote_data import cache_folder, local_path


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
    drop: Sequence[str] | str = (),
    pattern: str = "**/*.txt",
    subset: str | None = None,
    split: str = "train",
) -> Description:
    """Write the folder that `TokenFiles` (or `PairedTokens`) reads, and return the content of its data.json.

    Texts are streamed in pieces of bounded size. The folder is written under a temporary name beside `output` and
    renamed when it is complete. If `output` exists with the same sources and arguments, nothing is written.

    Args:
      source, target, field, drop, pattern, subset, split: see `Texts`; names in `drop` may be divided by commas.
      output: the folder to write.
      tokenizer: "bytes"; "characters", with every character of the text; "bpe", byte-level BPE of `vocabulary` tokens,
        trained on the training side; or the path of a tokenizer.json. All except "bytes" need UTF-8.
      vocabulary: number of tokens of BPE.
      validation_tenths: tenths of the data for validation, 1 to 9.
      end: add a token after each document, whose id follows those of the tokenizer.

    Raises:
      UserError: an argument or a source is invalid, or `output` holds other data; the message names file and place.
    """
    root = Path(output).expanduser()
    check_number("validation_tenths", validation_tenths, {"at_least": 1, "at_most": 9})
    _check_tokenizer(tokenizer, vocabulary)
    if target is not None and end:
        raise UserError("end is True; expected False for pairs, to which PairedTokens adds start and end")
    texts = Texts(
        source=url_of(source) or str(source),
        target=None if target is None else url_of(target) or str(target),
        field=field,
        drop=tuple(filter(None, drop.split(",") if isinstance(drop, str) else drop)),
        pattern=pattern,
        subset=subset,
        split=split,
        validation_tenths=validation_tenths,
        utf8=tokenizer != "bytes",
    )
    recipe = _recipe(texts, tokenizer, vocabulary, end)
    url = url_of(output)
    if url is not None and objects.info(f"{url}/data.json") is not None:
        root = local_path(url, "output")
    elif url is not None:
        root = cache_folder("prepared", url) / secrets.token_hex(8)
    if root.exists():
        return _check_existing(root, recipe, texts)
    check_not_dangling(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    beside = root.with_name(f".{root.name}.{secrets.token_hex(8)}.partial")
    beside.mkdir()
    try:
        description = _write_folder(beside, texts, tokenizer, vocabulary, end, recipe)
        if url is None:
            beside.rename(root)
        else:
            _store(beside, url)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return description


def _check_tokenizer(tokenizer: str, vocabulary: int | None) -> None:
    """Check the tokenizer of `prepare`: a kind with what it needs, or a file."""
    if (tokenizer == "bpe") != (vocabulary is not None):
        raise UserError(
            f"vocabulary is {vocabulary}; expected a number for tokenizer='bpe', such as 8000, and None for others"
        )
    if tokenizer not in TOKENIZERS and url_of(tokenizer) is None and not Path(tokenizer).expanduser().is_file():
        kinds = ", ".join(TOKENIZERS)
        raise UserError(
            f"tokenizer is '{tokenizer}', which is not a file; expected {kinds}, or the path of a tokenizer.json"
        )


def _store(folder: Path, url: str) -> None:
    """Store a complete folder in object storage; data.json, without which no task reads it, comes last.

    Raises:
      UserError: another process has stored the folder meanwhile.
    """
    last = folder / "data.json"
    for file in sorted(folder.iterdir()):
        if file != last:
            objects.upload(file, f"{url}/{file.name}")
    if not objects.create(f"{url}/data.json", last.read_bytes()):
        raise UserError(f"output is '{url}', which another process has written meanwhile; expected a new folder")


def _recipe(texts: Texts, tokenizer: str, vocabulary: int | None, end: bool) -> dict[str, object]:
    """Return the arguments that determine the tokens, with names of files in place of their paths."""
    recipe: dict[str, object] = {
        "target": None if texts.target is None else Path(texts.target).name,
        "tokenizer": tokenizer if tokenizer in TOKENIZERS else Path(tokenizer).name,
        "asked_vocabulary": vocabulary,
        "validation_tenths": texts.validation_tenths,
        "end": end,
        "field": texts.field,
        "drop": list(texts.drop),
        "pattern": texts.pattern,
        "subset": texts.subset,
        "split": texts.split,
    }
    return recipe if tokenizer in TOKENIZERS else recipe | read_tokenizer(tokenizer).fingerprint


def _write_folder(
    folder: Path, texts: Texts, tokenizer: str, vocabulary: int | None, end: bool, recipe: dict[str, object]
) -> Description:
    file = _tokenizer_file(texts, tokenizer, vocabulary)
    if file is not None:
        (folder / "tokenizer.json").write_bytes(file)
    encoding = read_tokenizer.__wrapped__(None if file is None else str(folder / "tokenizer.json"))
    identity, starts = _write_tokens(folder, texts, encoding, end)
    sizes: dict[str, TextSize] = {
        side: {"bytes": identity.bytes[side], "sha256": identity.texts[side].hexdigest()} for side in SIDES
    }
    for side in SIDES:
        if starts[side][-1] == 0:
            raise UserError(f"source is '{texts.source}': the {side} side has no text; expected more documents")
        np.save(folder / f"{side}.documents.npy", np.frombuffer(starts[side], np.int64))
    files = sorted(file for file in folder.iterdir())
    description: Description = {
        "format": FORMAT,
        "pairs": texts.target is not None,
        "dtype": token_dtype(encoding.vocabulary + end).name,
        "vocabulary": encoding.vocabulary + end,
        "end": encoding.vocabulary if end else None,
        "tokens": {side: starts[side][-1] for side in SIDES},
        "documents": {side: len(starts[side]) - 1 for side in SIDES},
        "texts": sizes,
        "sources": identity.names,
        "source_sha256": identity.digest.hexdigest(),
        "recipe": recipe,
        "files": {file.name: describe_file(file) for file in files},
    }
    write_document(folder / "data.json", dict(description))
    for written in [*files, folder / "data.json"]:
        with written.open("rb") as opened:
            os.fsync(opened.fileno())
    return description


class _Identity:
    """Names of the sources, a digest of all documents that were read from them, and size and digest by side."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.digest = hashlib.sha256()
        self.bytes = dict.fromkeys(SIDES, 0)
        self.texts = {side: hashlib.sha256() for side in SIDES}

    def begin_document(self, name: str, tenth: int) -> None:
        if name not in self.names[-2:]:  # pairs alternate between two files
            self.names.append(name)
        self.digest.update(f"{name} {tenth}\n".encode())

    def digest_pieces(self, pieces: Iterable[bytes], side: str) -> Iterator[bytes]:
        """Yield pieces of a document of a side after adding them to the digests."""
        for piece in pieces:
            self.digest.update(piece)
            self.texts[side].update(piece)
            self.bytes[side] += len(piece)
            yield piece


def _write_tokens(
    folder: Path, texts: Texts, encoding: Tokenizer, end: bool
) -> tuple[_Identity, dict[str, "array.array[int]"]]:
    """Write both .bin files, and return the sources' identity and the start of each document by side."""
    dtype = token_dtype(encoding.vocabulary + end).newbyteorder("<")
    identity, starts = _Identity(), {side: array.array("q", [0]) for side in SIDES}
    opened = {side: (folder / f"{side}.bin").open("wb") for side in SIDES}
    try:
        for document in texts:
            identity.begin_document(document.name, document.tenth)
            side = "validation" if document.tenth < texts.validation_tenths else "train"
            written = 0
            for tokens in encoding.encode_pieces(identity.digest_pieces(document.pieces(), side)):
                opened[side].write(tokens.astype(dtype).tobytes())
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
    """Return the content of the tokenizer's file, made from the texts or copied; None for bytes."""
    if tokenizer in TOKENIZERS:
        return TOKENIZERS[tokenizer](texts, vocabulary or 0)
    return local_path(tokenizer, "tokenizer").read_bytes()


def _read_texts(texts: Texts, with_validation: bool) -> Iterator[str]:
    for document in texts:
        if with_validation or document.tenth >= texts.validation_tenths:
            yield from (piece.decode() for piece in document.pieces())


TOKENIZERS: dict[str, Callable[[Texts, int], bytes | None]] = {
    "bytes": lambda texts, vocabulary: None,
    "characters": lambda texts, vocabulary: make_character_file(_read_texts(texts, with_validation=True)),
    "bpe": lambda texts, vocabulary: train_bpe(_read_texts(texts, with_validation=False), vocabulary),
}
"""Functions that make a tokenizer's file from the texts, by the tokenizer's name."""


def _check_existing(root: Path, recipe: dict[str, object], texts: Iterable[Document]) -> Description:
    """Return the description of a folder that exists, if `prepare` would write the same.

    Raises:
      UserError: the recipe or the sources differ.
    """
    description = read_description(root)
    values = {name: (description["recipe"].get(name), value) for name, value in recipe.items()}
    differences = [f"{name} is {old}, not {new}" for name, (old, new) in values.items() if old != new]
    identity = _Identity()
    for document in () if differences else texts:
        identity.begin_document(document.name, document.tenth)
        for piece in document.pieces():
            identity.digest.update(piece)
    if differences or identity.digest.hexdigest() != description["source_sha256"]:
        reason = "; ".join(differences) or "the sources have changed"
        raise UserError(f"output is '{root}', which holds other data ({reason}); expected a new folder, or remove it")
    open_tokens.__wrapped__(str(root))
    return description
