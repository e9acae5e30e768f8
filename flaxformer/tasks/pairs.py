"""Sequence to sequence from two text files: line i of one translates line i of the other."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from flaxformer.struct import UserError, static
from flaxformer.tasks.base import Batch, Task
from flaxformer.tasks.examples import ExampleSource
from flaxformer.tasks.sequence_to_sequence import FORMS
from flaxformer.tasks.tokenizer import Tokenizer, token_dtype, tokenizer


class Pair(NamedTuple):
    """A line and its translation as tokens, and which tenth of the data they fall in."""

    source: np.ndarray
    target: np.ndarray
    tenth: int


class PairedFiles(Task):
    """Say the line of `target_path` that translates a line of `source_path`; UTF-8 text, as many lines in each.

    Held out are `validation_tenths` of the pairs, by a hash of both lines: equal pairs fall on one side. A pair with
    an empty line, or a line of more than `max_length` tokens, is dropped; the fingerprint counts them.

    form: "paired", the source for an encoder, and a decoder that reads start, target; or "joined", one sequence
    source, start, target for a decoder, the source and the start being its prefix. What is scored is target, end.
    tokenizer: the path of a tokenizer.json; None for bytes. Start, end and padding are the three ids after its own.
    """

    source_path: str = static()
    target_path: str = static()
    validation_tenths: int = static(1, at_least=1, at_most=9)
    max_length: int = static(64, at_least=1)
    tokenizer: str | None = static(None)
    form: str = static("paired", choices=FORMS)

    @property
    def start(self) -> int:
        """The id before a target."""
        return tokenizer(self.tokenizer).vocabulary

    @property
    def end(self) -> int:
        """The id after a target."""
        return self.start + 1

    @property
    def padding(self) -> int:
        """The id where there is nothing."""
        return self.start + 2

    @property
    def vocabulary(self) -> int:
        return self.start + 3

    @property
    def sequence_length(self) -> int:
        return self.max_length + 1 if self.form == "paired" else 2 * self.max_length + 1

    @property
    def source_length(self) -> int:
        return self.max_length if self.form == "paired" else 0

    def load(self) -> ExampleSource:
        kept, _ = self._pairs()
        sides = {
            "training": [pair for pair in kept if pair.tenth >= self.validation_tenths],
            "validation": [pair for pair in kept if pair.tenth < self.validation_tenths],
        }
        for side, pairs in sides.items():
            if not pairs:
                found = f"{len(kept)} pairs of lines of 1 to {self.max_length} tokens"
                raise UserError(f"PairedFiles: of {found} none is on the {side} side; expected at least one")
        return ExampleSource(self._examples(sides["training"]), self._examples(sides["validation"]), self)

    def fingerprint(self) -> dict[str, Any]:
        kept, dropped = self._pairs()
        digests = {
            f"{side}_sha256": hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
            for side, path in (("source", self.source_path), ("target", self.target_path))
        }
        return digests | tokenizer(self.tokenizer).fingerprint | {"pairs": len(kept)} | dropped

    def _pairs(self) -> tuple[list[Pair], dict[str, int]]:
        """The pairs that are short enough and not empty, and how many are not."""
        pairs = read_pairs(self.source_path, self.target_path, tokenizer(self.tokenizer))
        sizes = [(pair, sorted((len(pair.source), len(pair.target)))) for pair in pairs]
        empty = sum(shorter == 0 for _, (shorter, _) in sizes)
        kept = [pair for pair, (shorter, longer) in sizes if shorter and longer <= self.max_length]
        return kept, {"dropped_empty": empty, "dropped_long": len(pairs) - empty - len(kept)}

    def _examples(self, pairs: list[Pair]) -> Batch:
        if self.form == "joined":
            return self._decoder_side([(pair.source, pair.target) for pair in pairs])
        source = self._padded([pair.source for pair in pairs], self.max_length)
        batch = self._decoder_side([(pair.source[:0], pair.target) for pair in pairs])
        return batch.replace(source=jnp.asarray(source), source_valid=jnp.asarray(source != self.padding))

    def _decoder_side(self, rows: list[tuple[np.ndarray, np.ndarray]]) -> Batch:
        """given, start, target -> each next token, scored from the target's first to the end."""
        tokens = self._padded([(*given, self.start, *said, self.end) for given, said in rows], self.sequence_length + 1)
        first = np.array([len(given) for given, _ in rows])[:, None]
        last = first + np.array([len(said) for _, said in rows])[:, None]
        place = np.arange(self.sequence_length)[None]
        read = place <= last
        return Batch(
            inputs=jnp.asarray(np.where(read, tokens[:, :-1], self.padding).astype(tokens.dtype)),
            targets=jnp.asarray(tokens[:, 1:]),
            weights=jnp.asarray((read & (place >= first)).astype(np.float32)),
            valid=jnp.asarray(read),
            prefix=jnp.asarray(first[:, 0] + 1, jnp.int32),
        )

    def _padded(self, rows: list[Any], width: int) -> np.ndarray:
        table = np.full((len(rows), width), self.padding, token_dtype(self.vocabulary))
        for place, row in enumerate(rows):
            table[place, : len(row)] = row
        return table


@functools.cache
def read_pairs(source_path: str, target_path: str, encoding: Tokenizer) -> list[Pair]:
    """Every pair of lines, stripped and encoded.

    Raises:
      UserError: a file is missing, or they have different numbers of lines.
    """
    sources, targets = (list(_lines(name, path)) for name, path in (("source", source_path), ("target", target_path)))
    if len(sources) != len(targets):
        raise UserError(
            f"source_path '{source_path}' has {len(sources)} lines and target_path '{target_path}' has "
            f"{len(targets)}; expected as many, line i translating line i"
        )
    return [
        Pair(encoding.encode(source), encoding.encode(target), _hash(source + b"\n" + target) % 10)
        for source, target in zip(sources, targets, strict=True)
    ]


def _lines(name: str, path: str) -> Iterator[bytes]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{name}_path is '{path}', which is not a file; expected text, a sentence a line")
    return (line.strip() for line in file.read_bytes().splitlines())


def _hash(text: bytes) -> int:
    return int(hashlib.sha256(text).hexdigest()[:8], 16)
