"""Tokens of a tokenizer.json, read by the `tokenizers` library.

No special token is added. One whose text occurs in a text becomes its id, as in the library, and is decoded to the same
text. A character for which the model has no token is refused; what a tokenizer's normalizer or pre-tokenizer removes by
its own rule, such as white space, is not a character of the model.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.json_reader import parse_json
from flaxformer.system.wording import first_of

PIECE = 2**20
"""Number of characters that are encoded at a time."""
OVERLAP = 2**12
"""Number of characters that two pieces have in common."""
AGREEING = 8
"""Number of equal tokens on each side of the place where two pieces are joined."""


class Encoded(NamedTuple):
    """Token ids of a text, and the first and the last character (exclusive) of each."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]


class LibraryTokenizer:
    """A tokenizer.json: text to ids and back.

    Args:
      path: the file, for messages.
      data: its content.

    Raises:
      UserError: the library is missing, or the content is not that of a tokenizer with tokens.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        module = library("tokenizers", "text", f"tokenizer '{path}'")
        try:
            # A post-processor adds special tokens, and removes white space from the places of tokens.
            self._model = module.Tokenizer.from_str(json.dumps(parse_json(data) | {"post_processor": None}))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"tokenizer is '{path}'; expected a tokenizer.json, but reading it gave: {error}") from None
        self._model.no_truncation()
        self._model.no_padding()
        ids = self._model.get_vocab(with_added_tokens=True).values()
        self.vocabulary = max(ids, default=-1) + 1  # ids may have gaps
        if not self.vocabulary:
            raise UserError(f"tokenizer is '{path}', which has no tokens; expected at least one")
        self._removed: dict[str, bool] = {}

    def encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the token ids of a text that comes in pieces; they are those of the whole text.

        Pieces are encoded with `OVERLAP` characters in common, and joined at a place in them where both have the same
        tokens before and after it. Where there is none, they are encoded together.

        Raises:
          UserError: the text has a character without a token.
        """
        window, done, sent = "", Encoded([], []), 0
        for text in _pieces(texts):
            start = max(0, len(window) - OVERLAP)
            later = self._encode(window[start:] + text)
            join = _agreement(done, later, start, sent)
            if join is None and start:
                start = 0
                later = self._encode(window + text)
                join = _agreement(done, later, 0, sent)
            if join is not None:
                kept, skipped = join
                yield list(done.ids[sent:kept])
                sent = skipped
            elif sent:
                place = done.spans[sent][0] if sent < len(done.spans) else len(window)
                sent = sum(first < place for first, _ in later.spans)
            window, done = window[start:] + text, later
        yield list(done.ids[sent:])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; those that the tokenizer does not have are skipped."""
        return self._model.decode([i for i in map(int, ids) if i < self.vocabulary], skip_special_tokens=False)

    def _encode(self, text: str) -> Encoded:
        try:
            encoding = self._model.encode(text, add_special_tokens=False)
        except Exception as error:  # such as a model whose unknown token is missing
            raise UserError(f"tokenizer '{self._path}' cannot encode the text: {error}") from None
        encoded = Encoded(encoding.ids, encoding.offsets)
        self._check_all_encoded(text, encoded)
        return encoded

    def _check_all_encoded(self, text: str, encoded: Encoded) -> None:
        """Check that every character is part of a token.

        Raises:
          UserError: the model dropped one.
        """
        changes = np.zeros(len(text) + 1, np.int32)
        if encoded.spans:
            spans = np.asarray(encoded.spans)
            np.add.at(changes, spans[:, 0], 1)
            np.add.at(changes, spans[:, 1], -1)
        missing = np.flatnonzero(changes.cumsum()[:-1] == 0)
        dropped = [place for place in missing.tolist() if not self._is_removed_by_rule(text[place])]
        if dropped:
            # After a dropped character of a word, the library's places of tokens may be too early.
            known: set[str] = set().union(*self._model.get_vocab(with_added_tokens=True))
            distinct = dict.fromkeys(text)
            alone = [character for character in distinct if not known.issuperset(self._seen_by_model(character))]
            characters = alone or list(dict.fromkeys(text[place] for place in dropped))
            named = first_of([f"{character!r} (U+{ord(character):04X})" for character in characters], 5)
            raise UserError(
                f"tokenizer '{self._path}' has no token for {named}, and drops characters of the text; "
                "expected a tokenizer with an unknown token, with bytes as tokens, or trained on this text"
            )

    def _is_removed_by_rule(self, character: str) -> bool:
        """True if the normalizer or the pre-tokenizer removes this character, so that the model never sees it."""
        if character not in self._removed:
            self._removed[character] = not self._seen_by_model(character)
        return self._removed[character]

    def _seen_by_model(self, character: str) -> str:
        """Return what the normalizer and the pre-tokenizer make of a character alone."""
        normalizer, pre_tokenizer = self._model.normalizer, self._model.pre_tokenizer
        text = character if normalizer is None else normalizer.normalize_str(character)
        pieces = [(text, (0, 1))] if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(text)
        return "".join(piece for piece, _ in pieces)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts in pieces of at most `PIECE` characters."""
    for text in texts:
        for start in range(0, len(text), PIECE):
            yield text[start : start + PIECE]


def _agreement(done: Encoded, later: Encoded, start: int, sent: int) -> tuple[int, int] | None:
    """Return where to join two encodings, the second of which begins at character `start` of the first.

    Args:
      sent: number of tokens of the first that the place may not come before.

    Returns:
      The numbers of tokens of the first and of the second before the place, which is the one farthest from both ends of
      what they have in common; None if the tokens agree nowhere.
    """
    if not done.spans or not later.spans:
        return None
    of_later: dict[int, int] = {}
    for index, (first, _) in enumerate(later.spans):
        of_later.setdefault(first + start, index)
    middle, ids, later_ids = (start + done.spans[-1][1]) // 2, list(done.ids), list(later.ids)
    places = [
        (abs(first - middle), kept, first)
        for kept, (first, _) in enumerate(done.spans)
        if first > start and kept >= sent
    ]
    for _, kept, place in sorted(places):
        skipped = of_later.get(place, 0)
        if min(kept, skipped) < AGREEING or kept + AGREEING > len(ids):
            continue
        is_boundary = done.spans[kept - 1][1] <= place and later.spans[skipped - 1][1] + start <= place
        tokens = ids[kept - AGREEING : kept + AGREEING]
        if is_boundary and tokens == later_ids[skipped - AGREEING : skipped + AGREEING]:
            return kept, skipped
    return None
