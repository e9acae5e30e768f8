"""Conversion of text to tokens and back: bytes, the characters of a vocabulary file, or a tokenizer.json."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from flaxformer.errors import UserError
from flaxformer.extras import library

PIECE = 2**20
"""Number of characters that are encoded at a time; a piece ends at the end of a line."""
CHARACTERS = "flaxformer characters"
"""The `format` of a vocabulary file of characters."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Pair of functions from UTF-8 text to token ids below `vocabulary` and back, with a digest of their file.

    `decode` skips ids that the tokenizer does not have, such as a task's start, end and padding.
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
def read_tokenizer(path: str | None) -> Tokenizer:
    """Read the tokenizer of a file; without a path, return the one whose tokens are bytes.

    Files are vocabularies of characters (`make_character_file`), or a tokenizer.json of the `tokenizers` library, whose
    special tokens, truncation and padding are not applied. Text is decoded as UTF-8, with the replacement character for
    invalid bytes. Encoding a character that a vocabulary of characters lacks raises a UserError.

    Raises:
      UserError: the file or the library is missing, or the file is of another kind.
    """
    if path is None:
        return BYTES
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"tokenizer is '{path}', which is not a file; expected a tokenizer.json")
    data = file.read_bytes()
    if characters := _parse_characters(data):
        return _character_tokenizer(path, data, characters)
    return _library_tokenizer(path, data)


def _library_tokenizer(path: str, data: bytes) -> Tokenizer:
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
        for piece in _split_text(text.decode(errors="replace")):
            ids += model.encode(piece, add_special_tokens=False).ids
        return np.array(ids, token_dtype(vocabulary))

    def decode(ids: Iterable[int]) -> str:
        return model.decode([i for i in map(int, ids) if i < vocabulary])

    return Tokenizer(vocabulary, encode, _fingerprint(data), decode)


def _parse_characters(data: bytes) -> list[str] | None:
    """Return the characters of a vocabulary file, by id; None for a file of another kind."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("characters") if isinstance(found, dict) and found.get("format") == CHARACTERS else None


def _character_tokenizer(path: str, data: bytes, characters: list[str]) -> Tokenizer:
    is_list = isinstance(characters, list) and all(isinstance(one, str) and len(one) == 1 for one in characters)
    if not is_list or len(set(characters)) != len(characters):
        raise UserError(f"tokenizer is '{path}'; expected a list of distinct characters")
    codes = np.array([ord(one) for one in characters], np.uint32)
    order = np.argsort(codes)

    def encode(text: bytes) -> np.ndarray:
        points = np.frombuffer(text.decode(errors="replace").encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(codes, points, sorter=order), len(codes) - 1)
        ids = order[places]
        if unknown := sorted(set(points[codes[ids] != points].tolist())):
            named = ", ".join(f"{chr(code)!r} (U+{code:04X})" for code in unknown[:5])
            raise UserError(f"the text has {named}; expected the {len(codes)} characters of '{path}'")
        return ids.astype(token_dtype(len(codes)))

    def decode(ids: Iterable[int]) -> str:
        return "".join(characters[i] for i in map(int, ids) if 0 <= i < len(characters))

    return Tokenizer(len(characters), encode, _fingerprint(data), decode)


def _fingerprint(data: bytes) -> dict[str, str]:
    return {"tokenizer_sha256": hashlib.sha256(data).hexdigest()}


def decode_stream(decode: Callable[[Iterable[int]], str], pieces: Iterable[Iterable[int]]) -> Iterator[str]:
    """Yield the text that each piece of tokens adds; a character is held back until all of its bytes have arrived.

    Args:
      decode: `Tokenizer.decode`.
      pieces: token ids in the order of generation.
    """
    ids: list[int] = []
    decoded = ""
    for piece in pieces:
        ids += [int(token) for token in piece]
        text = decode(ids).rstrip("\N{REPLACEMENT CHARACTER}")
        yield text[len(decoded) :]
        decoded = text
    yield decode(ids)[len(decoded) :]


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a context and of its continuation, whose likelihood is asked for.

    The tokens of the continuation are those of both together after as many as the context has alone; white space at the
    end of the context counts to the continuation (as in the LM Evaluation Harness, Gao et al. 2021).
    """
    first = tokenizer.encode(context.rstrip().encode(errors="replace"))
    whole = tokenizer.encode((context + continuation).encode(errors="replace"))
    return whole[: len(first)], whole[len(first) :]


def token_dtype(vocabulary: int) -> np.dtype:
    """Return the narrowest unsigned integer dtype for ids below `vocabulary`."""
    return np.min_scalar_type(vocabulary - 1)


def make_character_file(texts: Iterable[str]) -> bytes:
    """Return a vocabulary file with every character of the texts, with ids in the order of their code points."""
    found: set[str] = set()
    for text in texts:
        found |= set(text)
    data = {"format": CHARACTERS, "characters": sorted(found)}
    return (json.dumps(data, ensure_ascii=True, indent=0) + "\n").encode()


def train_bpe(texts: Iterable[str], vocabulary: int) -> bytes:
    """Train byte-level BPE of at most `vocabulary` tokens on the texts, and return its tokenizer.json.

    The 256 bytes are tokens, so that every text can be encoded; merges are within the words of GPT-2's pattern
    (Sennrich et al. 2016; Radford et al. 2019, section 2.2). A short text may have fewer merges.

    Raises:
      UserError: `vocabulary` is at most 256, or the library is missing.
    """
    if vocabulary <= 256:
        raise UserError(f"vocabulary is {vocabulary}; expected more than the 256 bytes that BPE starts from")
    load = functools.partial(library, extra="text", purpose="training a tokenizer")
    byte_level = load("tokenizers.pre_tokenizers").ByteLevel
    model = load("tokenizers").Tokenizer(load("tokenizers.models").BPE())
    model.pre_tokenizer = byte_level(add_prefix_space=False)
    model.decoder = load("tokenizers.decoders").ByteLevel()
    alphabet = sorted(byte_level.alphabet())
    trainer = load("tokenizers.trainers").BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    return model.to_str(pretty=True).encode()


def _split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that end at the end of a line."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
