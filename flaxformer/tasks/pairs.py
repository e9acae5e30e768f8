"""Sequence to sequence from pairs of lines, of two text files or prepared: one translates the other."""

import functools
import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.data.corpus import tenth
from flaxformer.data.token_files import TokenFolder, open_tokens
from flaxformer.data.tokenizer import Tokenizer, token_dtype, tokenizer
from flaxformer.struct import Config, UserError, part, static
from flaxformer.tasks.base import Batch, Task
from flaxformer.tasks.examples import BucketedSource, ExampleSource
from flaxformer.tasks.sequence_to_sequence import FORMS


class Pair(NamedTuple):
    """A line and its translation as tokens; and which tenth of the data they fall in, where that is yet to tell."""

    source: np.ndarray
    target: np.ndarray
    tenth: int = 0


class PairTask(Task):
    """Say the second line of a pair, given the first.

    A pair with an empty line, or a line of more than `max_length` tokens, is dropped; the fingerprint counts them.

    form: "paired", the source for an encoder, and a decoder that reads start, target; or "joined", one sequence
    source, start, target for a decoder, the source and the start being its prefix. What is scored is target, end.
    Start, end and padding are the three ids after those of the lines.

    buckets: 1, every pair is padded to `max_length`. More: the training pairs, from the shortest to the longest, are
    cut into so many equal parts, and each step reads batch_size / buckets pairs of each part, padded to the longest of
    that part alone; every pair is as likely as before, but that parts may differ by one pair. Length is of the longer
    line, then of the other, for "paired", and of both together for "joined". Evaluation is as with 1.
    """

    is_abstract: ClassVar[bool] = True

    max_length: int = static(64, at_least=1)
    form: str = static("paired", choices=FORMS)
    buckets: int = static(1, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.batch_size % self.buckets:
            yield f"buckets is {self.buckets}; expected a divisor of batch_size {self.batch_size}"

    @property
    def encoding(self) -> Tokenizer:
        """Tokenizer of the lines."""
        raise NotImplementedError

    @property
    def start(self) -> int:
        """The id before a target."""
        raise NotImplementedError

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

    def sides(self) -> dict[str, list[Pair]]:
        """All pairs to train on ("training"), and all that are held out ("validation")."""
        raise NotImplementedError

    def tokens_per_batch(self, model: ModelConfig) -> int:
        if self.buckets == 1:
            return super().tokens_per_batch(model)
        return self.batch_size // self.buckets * sum(map(sum, bucket_sizes(self)))

    def load(self) -> ExampleSource | BucketedSource:
        sides = {side: self._within_limits(pairs) for side, pairs in self.sides().items()}
        for side, pairs in sides.items():
            if not pairs:
                found = f"{sum(map(len, sides.values()))} pairs of lines of 1 to {self.max_length} tokens"
                raise UserError(f"{type(self).__name__}: of {found} none is on the {side} side; expected at least one")
        held_out = self._examples(sides["validation"], self.source_length, self.sequence_length)
        if self.buckets == 1:
            train = self._examples(sides["training"], self.source_length, self.sequence_length)
            return ExampleSource(train, held_out, self)
        buckets = self._cut(sides["training"])
        return BucketedSource(tuple(self._examples(pairs, *self._sizes(pairs)) for pairs in buckets), held_out, self)

    def _cut(self, pairs: list[Pair]) -> list[list[Pair]]:
        """From the shortest to the longest, in `buckets` parts of as many pairs, or one fewer."""
        if len(pairs) < self.buckets:
            raise UserError(f"buckets is {self.buckets}; expected at most the {len(pairs)} pairs to train on")
        sizes = [(pair.source.size, pair.target.size) for pair in pairs]
        lengths = [(sum(both), 0) if self.form == "joined" else (max(both), min(both)) for both in sizes]
        order = sorted(range(len(pairs)), key=lengths.__getitem__)
        cuts = [len(pairs) * i // self.buckets for i in range(self.buckets + 1)]
        return [[pairs[place] for place in order[first:last]] for first, last in pairwise(cuts)]

    def _sizes(self, pairs: list[Pair]) -> tuple[int, int]:
        """S and T that the longest of these pairs need."""
        if self.form == "joined":
            return 0, max(pair.source.size + pair.target.size for pair in pairs) + 1
        return max(pair.source.size for pair in pairs), max(pair.target.size for pair in pairs) + 1

    def prompts(self, sources: list[np.ndarray]) -> dict[str, Any]:
        """Return the prompts for the targets of these sources, as `generate` takes them; of shapes of the task."""
        if self.form == "joined":
            prompt = self._padded([(*source, self.start) for source in sources], self.max_length + 1)
            return {"prompt": prompt, "valid": prompt != self.padding}
        source = self._padded(sources, self.max_length).astype(np.int32)
        start = np.full((len(sources), 1), self.start)
        return {"prompt": start, "source": source, "source_valid": source != self.padding}

    def counts(self) -> dict[str, int]:
        """Return the number of pairs to use, and the numbers dropped, by reason."""
        pairs = [pair for side in self.sides().values() for pair in side]
        empty = sum(not pair.source.size or not pair.target.size for pair in pairs)
        kept = len(self._within_limits(pairs))
        return {"pairs": kept, "dropped_empty": empty, "dropped_long": len(pairs) - empty - kept}

    def _within_limits(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs that are short enough and not empty."""
        sizes = [(pair, sorted((pair.source.size, pair.target.size))) for pair in pairs]
        return [pair for pair, (shorter, longer) in sizes if shorter and longer <= self.max_length]

    def _examples(self, pairs: list[Pair], source_length: int, length: int) -> Batch:
        if self.form == "joined":
            return self._decoder_side([(pair.source, pair.target) for pair in pairs], length)
        source = self._padded([pair.source for pair in pairs], source_length)
        batch = self._decoder_side([(pair.source[:0], pair.target) for pair in pairs], length)
        return batch.replace(source=jnp.asarray(source), source_valid=jnp.asarray(source != self.padding))

    def _decoder_side(self, rows: list[tuple[np.ndarray, np.ndarray]], length: int) -> Batch:
        """given, start, target -> each next token, scored from the target's first to the end."""
        tokens = self._padded([(*given, self.start, *said, self.end) for given, said in rows], length + 1)
        first = np.array([len(given) for given, _ in rows])[:, None]
        last = first + np.array([len(said) for _, said in rows])[:, None]
        place = np.arange(length)[None]
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
def bucket_sizes(task: PairTask) -> tuple[tuple[int, int], ...]:
    """S and T of each bucket of a task, the shortest first."""
    return tuple(task._sizes(pairs) for pairs in task._cut(task._within_limits(task.sides()["training"])))


class TextPair(Config):
    """Two UTF-8 files with as many lines, of which one translates the other."""

    source_path: str = static()
    target_path: str = static()


class PairedFiles(PairTask):
    """Say the line of `target_path` that translates a line of `source_path`; UTF-8 text, as many lines in each.

    Held out are the pairs of `validation`, where it is given; else `validation_tenths` of all pairs, by a hash of both
    lines: equal pairs fall on one side.

    tokenizer: the path of a tokenizer.json; None for bytes.
    """

    source_path: str = static()
    target_path: str = static()
    validation: TextPair | None = part(None)
    validation_tenths: int = static(1, at_least=1, at_most=9)
    tokenizer: str | None = static(None)

    @property
    def encoding(self) -> Tokenizer:
        return tokenizer(self.tokenizer)

    @property
    def start(self) -> int:
        return self.encoding.vocabulary

    def sides(self) -> dict[str, list[Pair]]:
        pairs = read_pairs(self.source_path, self.target_path, self.encoding)
        if own := self.validation:
            return {"training": pairs, "validation": read_pairs(own.source_path, own.target_path, self.encoding)}
        return {
            "training": [pair for pair in pairs if pair.tenth >= self.validation_tenths],
            "validation": [pair for pair in pairs if pair.tenth < self.validation_tenths],
        }

    def fingerprint(self) -> dict[str, Any]:
        paths = {"source": self.source_path, "target": self.target_path}
        if own := self.validation:
            paths |= {"validation_source": own.source_path, "validation_target": own.target_path}
        digests = {
            f"{side}_sha256": hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
            for side, path in paths.items()
        }
        return digests | self.encoding.fingerprint | self.counts()


class PairedTokens(PairTask):
    """Pairs that `flaxformer.data.prepare` wrote, given a target: the folder `path` has the split and the tokens."""

    path: str = static()

    @property
    def folder(self) -> TokenFolder:
        """The folder, opened and checked once."""
        return open_tokens(self.path).holding(pairs=True)

    @property
    def encoding(self) -> Tokenizer:
        return tokenizer(self.folder.tokenizer_path)

    @property
    def start(self) -> int:
        return self.folder.vocabulary

    def sides(self) -> dict[str, list[Pair]]:
        folder = self.folder
        return {
            "training": cut_pairs(folder.train, folder.train_documents),
            "validation": cut_pairs(folder.validation, folder.validation_documents),
        }

    def fingerprint(self) -> dict[str, Any]:
        return self.folder.fingerprint() | self.counts()


def cut_pairs(tokens: np.ndarray, documents: np.ndarray) -> list[Pair]:
    """Documents 0 and 1 are a pair, 2 and 3 the next."""
    lines = np.split(tokens, documents[1:-1])
    return [Pair(source, target) for source, target in zip(lines[::2], lines[1::2], strict=True)]


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
        Pair(encoding.encode(source), encoding.encode(target), tenth(source + b"\n" + target))
        for source, target in zip(sources, targets, strict=True)
    ]


def _lines(name: str, path: str) -> Iterator[bytes]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{name}_path is '{path}', which is not a file; expected text, a sentence a line")
    return (line.strip() for line in file.read_bytes().splitlines())
