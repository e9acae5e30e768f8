"""Conversion of text to tokens and back: bytes, the characters of a vocabulary file, or a tokenizer.json."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from flaxformer.data.library_tokenizer import LibraryTokenizer
from flaxformer.data.lines import decode_utf8
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.json_reader import parse_json
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path

CHARACTERS = "flaxformer characters"
"""The `format` of a vocabulary file of characters."""
LARGEST_VOCABULARY = 2**24
"""Most tokens of BPE; the library reserves memory for all of them before it trains."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Functions from text to token ids below `vocabulary` and back, with a digest of their file.

    Args:
      vocabulary: number of ids.
      encode_pieces: yields the ids of a text that comes in pieces of bytes, which end at the end of a character; they
        are those of the whole text. It raises a UserError for bytes that are not UTF-8 (except where tokens are bytes),
        and for characters without a token.
      fingerprint: digest of the file.
      decode: the text of ids; it skips those that the tokenizer does not have, such as a task's start, end and padding.
      is_text: False if tokens are bytes, which need not be UTF-8.
    """

    vocabulary: int
    encode_pieces: Callable[[Iterable[bytes]], Iterator[np.ndarray]]
    fingerprint: dict[str, str]
    decode: Callable[[Iterable[int]], str]
    is_text: bool = True

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of a text."""
        pieces = list(self.encode_pieces((text,)))
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, token_dtype(self.vocabulary)), *pieces])


def token_dtype(vocabulary: int) -> np.dtype:
    """Return the narrowest unsigned integer dtype for ids below `vocabulary`."""
    return np.min_scalar_type(vocabulary - 1)


BYTES = Tokenizer(
    256,
    lambda pieces: (np.frombuffer(piece, np.uint8) for piece in pieces),
    {},
    lambda ids: bytes(i for i in map(int, ids) if 0 <= i < 256).decode(errors="replace"),
    is_text=False,
)


@remembered
def read_tokenizer(path: str | None) -> Tokenizer:
    """Read the tokenizer of a file; without a path, return the one whose tokens are bytes.

    Files are vocabularies of characters (`make_character_file`), or a tokenizer.json of the `tokenizers` library, whose
    truncation and padding are not applied. No special token is added; where the text of one occurs in a text, it is
    that token, and `decode` shows it. Bytes that are not UTF-8, and characters without a token, raise a UserError.

    Raises:
      UserError: the file or the library is missing, or the file is of another kind.
    """
    if path is None:
        return BYTES
    file = local_path(path, "tokenizer")
    if not file.is_file():
        raise UserError(f"tokenizer is '{path}', which is not a file; expected a tokenizer.json")
    return make_tokenizer(path, file.read_bytes())


def make_tokenizer(name: str, data: bytes) -> Tokenizer:
    """Return the tokenizer of the content of a file, as `read_tokenizer`, with a name for messages."""
    if characters := _parse_characters(data):
        return _character_tokenizer(name, data, characters)
    return _library_tokenizer(name, data)


def _library_tokenizer(path: str, data: bytes) -> Tokenizer:
    model = LibraryTokenizer(path, data)
    dtype = token_dtype(model.vocabulary)

    def encode_pieces(pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        texts = (decode_utf8(piece, "the text") for piece in pieces)
        yield from (np.array(ids, dtype) for ids in model.encode(texts))

    return Tokenizer(model.vocabulary, encode_pieces, _fingerprint(data), model.decode)


def _parse_characters(data: bytes) -> list[str] | None:
    """Return the characters of a vocabulary file, by id; None for a file of another kind."""
    try:
        content = parse_json(data)
    except ValueError:
        return None
    return content.get("characters") if isinstance(content, dict) and content.get("format") == CHARACTERS else None


def _character_tokenizer(path: str, data: bytes, characters: list[str]) -> Tokenizer:
    is_list = isinstance(characters, list) and all(isinstance(char, str) and len(char) == 1 for char in characters)
    if not is_list or len(set(characters)) != len(characters):
        raise UserError(f"tokenizer is '{path}'; expected a list of distinct characters")
    codes = np.array([ord(char) for char in characters], np.uint32)
    order = np.argsort(codes)

    def encode(text: bytes) -> np.ndarray:
        code_points = np.frombuffer(decode_utf8(text, "the text").encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(codes, code_points, sorter=order), len(codes) - 1)
        ids = order[places]
        if unknown := sorted(set(code_points[codes[ids] != code_points].tolist())):
            named = ", ".join(f"{chr(code)!r} (U+{code:04X})" for code in unknown[:5])
            raise UserError(f"the text has {named}; expected the {len(codes)} characters of '{path}'")
        return ids.astype(token_dtype(len(codes)))

    def decode(ids: Iterable[int]) -> str:
        return "".join(characters[i] for i in map(int, ids) if 0 <= i < len(characters))

    return Tokenizer(len(characters), lambda pieces: map(encode, pieces), _fingerprint(data), decode)


def _fingerprint(data: bytes) -> dict[str, str]:
    return {"tokenizer_sha256": hashlib.sha256(data).hexdigest()}


def decode_stream(decode: Callable[[Iterable[int]], str], pieces: Iterable[Iterable[int]]) -> Iterator[str]:
    """Yield the text that each piece of tokens adds; a character is held back until all of its bytes have arrived.

    Some decoders read a run of bytes as a whole, so that one incomplete character makes complete ones before it
    unreadable: text that was yielded stays, and what follows is held back until the text goes on from it.

    Args:
      decode: `Tokenizer.decode`.
      pieces: token ids in the order of generation.
    """
    ids: list[int] = []
    decoded = ""
    for piece in pieces:
        ids += [int(token) for token in piece]
        text = decode(ids).rstrip("\N{REPLACEMENT CHARACTER}")
        added = text.removeprefix(decoded) if text.startswith(decoded) else ""
        yield added
        decoded += added
    yield decode(ids)[len(decoded) :]


def check_restored(tokenizer: Tokenizer, documents: Iterable[np.ndarray], sha256: str, name: str) -> None:
    """Check that the tokens of documents are decoded to their texts, so that a loss counts all of their bytes.

    Args:
      tokenizer: the tokenizer.
      documents: tokens of each.
      sha256: digest of the texts, one after another.
      name: of the tokenizer, for the message.

    Raises:
      UserError: the decoded texts have another digest.
    """
    digest = hashlib.sha256()
    for tokens in documents if tokenizer.is_text else ():
        digest.update(tokenizer.decode(tokens.tolist()).encode())
    if tokenizer.is_text and digest.hexdigest() != sha256:
        raise UserError(
            f"bits_per_byte is True and tokenizer '{name}' does not restore the validation text from its tokens; "
            "expected one that keeps all characters, such as byte-level BPE"
        )


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a context and of its continuation, whose likelihood is asked for.

    The tokens of the continuation are those of both together after as many as the context has alone; white space at the
    end of the context counts to the continuation (as in the LM Evaluation Harness, Gao et al. 2021).
    """
    first = tokenizer.encode(context.rstrip().encode())
    whole = tokenizer.encode((context + continuation).encode())
    return whole[: len(first)], whole[len(first) :]


def make_character_file(texts: Iterable[str]) -> bytes:
    """Return a vocabulary file with every character of the texts, with ids in the order of their code points."""
    characters: set[str] = set()
    for text in texts:
        characters |= set(text)
    data = {"format": CHARACTERS, "characters": sorted(characters)}
    return (json.dumps(data, ensure_ascii=True, indent=0) + "\n").encode()


def train_bpe(texts: Iterable[str], vocabulary: int) -> bytes:
    """Train byte-level BPE of at most `vocabulary` tokens on the texts, and return its tokenizer.json.

    The 256 bytes are tokens, so that every text can be encoded; merges are within the words of GPT-2's pattern
    (Sennrich et al. 2016; Radford et al. 2019, section 2.2). A short text may have fewer merges.

    Raises:
      UserError: `vocabulary` is at most 256 or too large, or the library is missing.
    """
    if not 256 < vocabulary <= LARGEST_VOCABULARY:
        raise UserError(
            f"vocabulary is {vocabulary}; expected more than the 256 bytes that BPE starts from, and at most "
            f"{LARGEST_VOCABULARY:,}"
        )
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
