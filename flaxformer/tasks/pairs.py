"""Translation: sequence to sequence tasks on pairs of lines, from two text files or prepared."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, NotRequired, TypedDict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.core.struct import Config, part, static
from flaxformer.data.pairs import Pair, read_pairs, split_pairs
from flaxformer.data.token_files import TokenFolder, open_tokens
from flaxformer.data.tokenizer import Tokenizer, read_tokenizer, token_dtype
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.examples import BucketedSource, ExampleSource
from flaxformer.tasks.sequence_to_sequence import FORMS


class Prompts(TypedDict):
    """Arguments of `generate`."""

    prompt: np.ndarray
    valid: NotRequired[np.ndarray]
    source: NotRequired[Array]
    source_valid: NotRequired[Array]


class PairTask(Task):
    """Base of translation: predict the second line of a pair, given the first.

    Pairs with an empty line, or with a line of more than `max_length` tokens, are dropped; the fingerprint has their
    number. Start, end and padding are the three ids after those of the tokenizer. What is padding is known by the
    lengths of the lines: the id of padding in a line is a token. The target and the end are scored.

    form: "paired" has the source for an encoder, and start, target for a decoder; "joined" has one sequence source,
      start, target for a decoder, with the source and the start as its prefix.
    buckets: 1 pads every pair to `max_length`. A larger number divides the training pairs, sorted by length, into as
      many parts of equal size; each step reads batch_size / buckets pairs of each part, padded to the longest of that
      part. All pairs remain (up to one pair per part) equally likely. "paired" pairs are sorted by their longer line,
      then by the other, "joined" ones by the sum of both. The evaluation set has no buckets.
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
        """The id of padding."""
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
        """Return all pairs for "training", all held-out pairs for "validation", and those for "test", if there are."""
        raise NotImplementedError

    def tokens_per_batch(self, model: ModelConfig) -> int:
        if self.buckets == 1:
            return super().tokens_per_batch(model)
        return self.batch_size // self.buckets * sum(map(sum, self.bucket_sizes()))

    def load(self) -> ExampleSource | BucketedSource:
        sides = {side: self._within_limits(pairs) for side, pairs in self.sides().items()}
        for side in ("training", "validation"):
            if not sides[side]:
                used = sum(map(len, sides.values()))
                left_out = sum(map(len, self.sides().values())) - used
                raise UserError(
                    f"{type(self).__name__}: 0 of {used} pairs of lines of 1 to {self.max_length} tokens are on the "
                    f"{side} side; expected at least one ({left_out} pairs are left out: empty, or above max_length)"
                )
        sizes = self.source_length, self.sequence_length
        held_out = self._examples(sides["validation"], *sizes)
        tested = self._examples(sides["test"], *sizes) if sides.get("test") else None
        if self.buckets == 1:
            train = self._examples(sides["training"], *sizes)
            return ExampleSource(train, held_out, self, tested)
        buckets = tuple(
            self._examples(pairs, *self._sizes(pairs)) for pairs in self._split_by_length(sides["training"])
        )
        return BucketedSource(buckets, held_out, self, tested)

    @remembered  # a config is small, and equal ones share an entry
    def bucket_sizes(self) -> tuple[tuple[int, int], ...]:
        """Return S and T of each bucket, the shortest first."""
        return tuple(
            self._sizes(pairs) for pairs in self._split_by_length(self._within_limits(self.sides()["training"]))
        )

    def _split_by_length(self, pairs: list[Pair]) -> list[list[Pair]]:
        """Return the pairs in `buckets` parts from the shortest to the longest, whose sizes differ by at most one."""
        if len(pairs) < self.buckets:
            raise UserError(f"buckets is {self.buckets}; expected at most the number of training pairs, {len(pairs)}")
        sizes = [(pair.source.size, pair.target.size) for pair in pairs]
        lengths = [(sum(both), 0) if self.form == "joined" else (max(both), min(both)) for both in sizes]
        order = sorted(range(len(pairs)), key=lengths.__getitem__)
        cuts = [len(pairs) * i // self.buckets for i in range(self.buckets + 1)]
        return [[pairs[place] for place in order[first:last]] for first, last in pairwise(cuts)]

    def _sizes(self, pairs: list[Pair]) -> tuple[int, int]:
        """Return S and T for the longest of these pairs."""
        if self.form == "joined":
            return 0, max(pair.source.size + pair.target.size for pair in pairs) + 1
        return max(pair.source.size for pair in pairs), max(pair.target.size for pair in pairs) + 1

    def prompts(self, sources: list[np.ndarray]) -> Prompts:
        """Return arguments of `generate` for the targets of these sources, padded to `max_length`."""
        if self.form == "joined":
            rows = [(*source, self.start) for source in sources]
            prompt = self._pad(rows, self.max_length + 1)
            return {"prompt": prompt, "valid": _is_real(rows, prompt.shape[-1])}
        source = jnp.asarray(self._pad(sources, self.max_length), jnp.int32)
        start = np.full((len(sources), 1), self.start)
        return {"prompt": start, "source": source, "source_valid": jnp.asarray(_is_real(sources, self.max_length))}

    def counts(self) -> dict[str, int]:
        """Return the number of pairs that are used, and the numbers of pairs that are dropped, by reason."""
        pairs = [pair for side in self.sides().values() for pair in side]
        empty = sum(not pair.source.size or not pair.target.size for pair in pairs)
        used = len(self._within_limits(pairs))
        return {"pairs": used, "dropped_empty": empty, "dropped_long": len(pairs) - empty - used}

    def _within_limits(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs that are short enough and not empty."""
        sizes = [(pair, sorted((pair.source.size, pair.target.size))) for pair in pairs]
        return [pair for pair, (shorter, longer) in sizes if shorter and longer <= self.max_length]

    def _examples(self, pairs: list[Pair], source_length: int, length: int) -> Batch:
        if self.form == "joined":
            return self._decoder_examples([(pair.source, pair.target) for pair in pairs], length)
        sources = [pair.source for pair in pairs]
        source, is_real = self._pad(sources, source_length), _is_real(sources, source_length)
        batch = self._decoder_examples([(pair.source[:0], pair.target) for pair in pairs], length)
        return batch.replace(source=jnp.asarray(source), source_valid=jnp.asarray(is_real))

    def _decoder_examples(self, rows: list[tuple[np.ndarray, np.ndarray]], length: int) -> Batch:
        """Return next-token examples of the sequences prefix, start, target, end; target and end are scored."""
        tokens = self._pad([(*prefix, self.start, *target, self.end) for prefix, target in rows], length + 1)
        first = np.array([len(prefix) for prefix, _ in rows])[:, None]
        last = first + np.array([len(target) for _, target in rows])[:, None]
        place = np.arange(length)[None]
        valid = place <= last
        return Batch(
            inputs=jnp.asarray(np.where(valid, tokens[:, :-1], self.padding).astype(tokens.dtype)),
            targets=jnp.asarray(tokens[:, 1:]),
            weights=jnp.asarray((valid & (place >= first)).astype(np.float32)),
            valid=jnp.asarray(valid),
            prefix=jnp.asarray(first[:, 0] + 1, jnp.int32),
            padding_is_behind=True,
        )

    def _pad(self, rows: Sequence[Sequence[int] | np.ndarray], width: int) -> np.ndarray:
        table = np.full((len(rows), width), self.padding, token_dtype(self.vocabulary))
        for place, row in enumerate(rows):
            table[place, : len(row)] = row
        return table


def _is_real(rows: Sequence[Sequence[int] | np.ndarray], width: int) -> np.ndarray:
    """Return [rows, width], False at padding: by the lengths, since the id of padding may also be a token of a text."""
    return np.arange(width) < np.array([len(row) for row in rows])[:, None]


class TextPair(Config):
    """Two UTF-8 files with equal numbers of lines, of which the second translates the first."""

    source_path: str = static()
    target_path: str = static()


class PairedFiles(PairTask):
    r"""Translation from the lines of `source_path` to those of `target_path`, two files with equal numbers of lines.

    A line ends at "\n"; white space at its ends is left out. With a tokenizer, files are UTF-8.

    Held-out pairs are those of `validation`, if it is given; else `validation_tenths` of all pairs, chosen by a hash of
    both lines, so that equal pairs are on one side.

    tokenizer: the path of a tokenizer.json; None for bytes.
    """

    source_path: str = static()
    target_path: str = static()
    validation: TextPair | None = part(None)
    validation_tenths: int = static(1, at_least=1, at_most=9)
    tokenizer: str | None = static(None)

    @property
    def encoding(self) -> Tokenizer:
        return read_tokenizer(self.tokenizer)

    @property
    def start(self) -> int:
        return self.encoding.vocabulary

    def sides(self) -> dict[str, list[Pair]]:
        pairs = read_pairs(self.source_path, self.target_path, self.encoding)
        if validation := self.validation:
            return {
                "training": pairs,
                "validation": read_pairs(validation.source_path, validation.target_path, self.encoding),
            }
        return {
            "training": [pair for pair in pairs if pair.tenth >= self.validation_tenths],
            "validation": [pair for pair in pairs if pair.tenth < self.validation_tenths],
        }

    def fingerprint(self) -> dict[str, object]:
        paths: dict[str, str] = {"source": self.source_path, "target": self.target_path}
        if validation := self.validation:
            paths |= {"validation_source": validation.source_path, "validation_target": validation.target_path}
        digests: dict[str, object] = {
            f"{side}_sha256": hashlib.sha256(local_path(path).read_bytes()).hexdigest() for side, path in paths.items()
        }
        return {**digests, **self.encoding.fingerprint, **self.counts()}


class PairedTokens(PairTask):
    """Translation of pairs that `flaxformer.data.prepare` wrote with a `target`, in the folder `path`."""

    path: str = static()

    @property
    def folder(self) -> TokenFolder:
        """The folder, which is opened and checked once."""
        return open_tokens(self.path).require(pairs=True)

    @property
    def encoding(self) -> Tokenizer:
        return read_tokenizer(self.folder.tokenizer_path)

    @property
    def start(self) -> int:
        return self.folder.vocabulary

    def sides(self) -> dict[str, list[Pair]]:
        folder = self.folder
        return {
            "training": split_pairs(folder.train, folder.train_documents),
            "validation": split_pairs(folder.validation, folder.validation_documents),
        }

    def fingerprint(self) -> dict[str, object]:
        return self.folder.fingerprint() | self.counts()
