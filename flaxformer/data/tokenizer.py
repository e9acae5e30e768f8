"""From text to tokens and back: bytes, the characters of a vocabulary file, or what a tokenizer.json makes of it."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from flaxformer.extras import library
from flaxformer.struct import UserError

PIECE = 2**20
"""Characters encoded at a time; a piece ends at a line's end."""
CHARACTERS = "flaxformer characters"
"""The `format` of a vocabulary file of characters."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Tokenizer: text to token ids below `vocabulary` and back, and what identifies it.

    `decode` leaves out ids that the tokenizer does not have, such as a task's start, end and padding.
    """

    vocabulary: int
    encode: Callable[[bytes], np.ndarray]
    fingerprint: dict[str, str]
    decode: Callable[[Iterable[int]], str]


BYTES = Tokenizer(
    256,
    lambda text: np.frombuffer(text, np.uint8),
    {},
    lambda ids: bytes(i for i in map(int, ids) if 0 <= i < 256).decode(errors="replace"),
)


@functools.cache
def tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer in a file: characters, or one of the `tokenizers` library; without a path, a token is a byte.

    Text is read as UTF-8, what is not valid as the replacement character. Of a tokenizer.json, special tokens,
    truncation and padding are left out. Encoding refuses a character that a vocabulary of characters does not have.

    Raises:
      UserError: the library is missing, or the file is, or it is not such a file.
    """
    if path is None:
        return BYTES
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"tokenizer is '{path}', which is not a file; expected a tokenizer.json")
    data = file.read_bytes()
    if characters := _characters_in(data):
        return _of_characters(path, data, characters)
    return _of_library(path, data)


def _of_library(path: str, data: bytes) -> Tokenizer:
    try:
        model = library("tokenizers", "text", f"tokenizer '{path}'").Tokenizer.from_buffer(data)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"tokenizer is '{path}'; expected a tokenizer.json, but reading it gave: {error}") from None
    model.no_truncation()
    model.no_padding()
    vocabulary = max(model.get_vocab(with_added_tokens=True).values(), default=-1) + 1  # ids may have gaps
    if not vocabulary:
        raise UserError(f"tokenizer is '{path}', which has no tokens; expected at least one")

    def encode(text: bytes) -> np.ndarray:
        ids: list[int] = []
        for piece in _pieces(text.decode(errors="replace")):
            ids += model.encode(piece, add_special_tokens=False).ids
        return np.array(ids, token_dtype(vocabulary))

    def decode(ids: Iterable[int]) -> str:
        return model.decode([i for i in map(int, ids) if i < vocabulary])

    return Tokenizer(vocabulary, encode, _fingerprint(data), decode)


def _characters_in(data: bytes) -> list[str] | None:
    """The characters of a vocabulary file, by id; None for a file of another kind."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("characters") if isinstance(found, dict) and found.get("format") == CHARACTERS else None


def _of_characters(path: str, data: bytes, characters: list[str]) -> Tokenizer:
    known = isinstance(characters, list) and all(isinstance(one, str) and len(one) == 1 for one in characters)
    if not known or len(set(characters)) != len(characters):
        raise UserError(f"tokenizer is '{path}'; expected a list of characters, each there once")
    codes = np.array([ord(one) for one in characters], np.uint32)
    order = np.argsort(codes)

    def encode(text: bytes) -> np.ndarray:
        asked = np.frombuffer(text.decode(errors="replace").encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(codes, asked, sorter=order), len(codes) - 1)
        ids = order[places]
        if unknown := sorted(set(asked[codes[ids] != asked].tolist())):
            named = ", ".join(f"{chr(code)!r} (U+{code:04X})" for code in unknown[:5])
            raise UserError(f"the text has {named}; expected the {len(codes)} characters of '{path}'")
        return ids.astype(token_dtype(len(codes)))

    def decode(ids: Iterable[int]) -> str:
        return "".join(characters[i] for i in map(int, ids) if 0 <= i < len(characters))

    return Tokenizer(len(characters), encode, _fingerprint(data), decode)


def _fingerprint(data: bytes) -> dict[str, str]:
    return {"tokenizer_sha256": hashlib.sha256(data).hexdigest()}


def as_said(decode: Callable[[Iterable[int]], str], pieces: Iterable[Iterable[int]]) -> Iterator[str]:
    """The text of tokens that come piece by piece: what each adds, a character once it is whole; last, what is left."""
    ids: list[int] = []
    decoded = ""
    for piece in pieces:
        ids += [int(token) for token in piece]
        text = decode(ids).rstrip("\N{REPLACEMENT CHARACTER}")
        yield text[len(decoded) :]
        decoded = text
    yield decode(ids)[len(decoded) :]


def token_dtype(vocabulary: int) -> np.dtype:
    """The narrowest unsigned integers that hold every token."""
    return np.min_scalar_type(vocabulary - 1)


def character_file(texts: Iterable[str]) -> bytes:
    """A vocabulary file with every character of the texts; ids follow the order of their code points."""
    found: set[str] = set()
    for text in texts:
        found |= set(text)
    data = {"format": CHARACTERS, "characters": sorted(found)}
    return (json.dumps(data, ensure_ascii=True, indent=0) + "\n").encode()


def trained_file(texts: Iterable[str], vocabulary: int) -> bytes:
    """A tokenizer.json with byte-level BPE of at most `vocabulary` tokens, trained on the texts.

    The 256 bytes are tokens, so that every text can be encoded; merges are within the words of GPT-2's pattern
    (Sennrich et al. 2016; Radford et al. 2019, section 2.2). A short text may have fewer merges to give.

    Raises:
      UserError: no room for the bytes and a merge, or the library is missing.
    """
    if vocabulary <= 256:
        raise UserError(f"vocabulary is {vocabulary}; expected more than the 256 bytes that BPE starts from")
    of = functools.partial(library, extra="text", purpose="training a tokenizer")
    levels = of("tokenizers.pre_tokenizers").ByteLevel
    model = of("tokenizers").Tokenizer(of("tokenizers.models").BPE())
    model.pre_tokenizer = levels(add_prefix_space=False)
    model.decoder = of("tokenizers.decoders").ByteLevel()
    alphabet = sorted(levels.alphabet())
    trainer = of("tokenizers.trainers").BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    return model.to_str(pretty=True).encode()


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of bounded size."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
