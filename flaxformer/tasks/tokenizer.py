"""From text to tokens: its bytes, or what a tokenizer.json makes of it."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from flaxformer.struct import UserError
from flaxformer.tasks.extras import library

PIECE = 2**20
"""Characters encoded at a time; a piece ends at a line's end."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """How text becomes token ids below `vocabulary`, and what identifies that."""

    vocabulary: int
    encode: Callable[[bytes], np.ndarray]
    fingerprint: dict[str, str]


BYTES = Tokenizer(256, lambda text: np.frombuffer(text, np.uint8), {})


@functools.cache
def tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer in a file of the `tokenizers` library, without its special tokens, truncation and padding.

    Text is read as UTF-8, what is not valid as the replacement character. Without a path, a token is a byte.

    Raises:
      UserError: the library is missing, or the file is, or it is not such a file.
    """
    if path is None:
        return BYTES
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"tokenizer is '{path}', which is not a file; expected a tokenizer.json")
    data = file.read_bytes()
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

    return Tokenizer(vocabulary, encode, {"tokenizer_sha256": hashlib.sha256(data).hexdigest()})


def token_dtype(vocabulary: int) -> np.dtype:
    """The narrowest unsigned integers that hold every token."""
    return np.min_scalar_type(vocabulary - 1)


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of bounded size."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
