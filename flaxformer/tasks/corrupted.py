"""Denoising tasks on text, and span corruption.

Batches are pure functions of (key, step), and the windows are those of the text's own task for that key and step.
Source: Raffel et al. 2020, section 3.1.4 (spans).
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flaxformer.core.params import fold_in_name
from flaxformer.core.struct import part, static
from flaxformer.data.corpus import count_model_losses_by_target
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.examples import scale_weights
from flaxformer.tasks.overlap import SAMPLE, Overlap
from flaxformer.tasks.text import COUNTED, StandardLibrary, TextFiles
from flaxformer.tasks.token_files import TokenFiles


class Corrupted(Task):
    """Base of denoising tasks: windows of `text` of `text.length` tokens, each corrupted with its own random key.

    `batch_size` and the fields of the evaluation set belong to this task, and stay at their defaults in `text`.
    """

    is_abstract: ClassVar[bool] = True

    text: StandardLibrary | TextFiles | TokenFiles = part(StandardLibrary())

    @property
    def packs_documents(self) -> bool:
        return self.text.packs_documents

    def problems(self) -> Iterator[str]:
        for field in dataclasses.fields(Task):
            if (setting := getattr(self.text, field.name)) != field.default:
                yield f"text.{field.name} is {setting}; set {type(self).__name__}.{field.name} instead"
        if self.text.bits_per_byte:
            yield "text.bits_per_byte is True; expected False, since not all tokens of a corrupted text are scored"

    def load(self) -> "CorruptedSource":
        return CorruptedSource(self.sized_text.load(), self)

    @property
    def sized_text(self) -> StandardLibrary | TextFiles | TokenFiles:
        """The text, with the batch size and the evaluation set of this task."""
        return self.text.replace(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Task)})

    def fingerprint(self) -> dict[str, object]:
        return self.text.fingerprint()

    def overlap(self, sample: int = SAMPLE) -> Overlap:
        """Return the overlap of the windows before corruption."""
        return self.sized_text.overlap(sample)

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        """Return the inputs and targets of one window."""
        raise NotImplementedError

    def _count_model_losses(self, before: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the unigram and bigram losses of targets, given the tokens before them."""
        return count_model_losses_by_target(self.text.tokens()[0][:COUNTED], before, targets, self.text.vocabulary)


class CorruptedSource(Source):
    """Source of corrupted windows of a text."""

    text: Source
    task: Corrupted = flax.struct.field(pytree_node=False)

    @property
    def on_host(self) -> bool:
        return self.text.on_host

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        return _corrupt_batch(
            self.task, fold_in_name(jax.random.fold_in(key, step), "corruption"), self.text.batch(key, step)
        )

    def evaluation(self) -> Batch:
        return _corrupt_batch(self.task, fold_in_name(jax.random.key(0), "corruption"), self.text.evaluation())

    def test(self) -> Batch | None:
        """Return the test windows of the text, corrupted; windows that do not count in the text have weight 0."""
        plain = self.text.test()
        if plain is None:
            return None
        key = fold_in_name(fold_in_name(jax.random.key(0), "corruption"), "test")
        corrupted = _corrupt_batch(self.task, key, plain)
        return scale_weights(corrupted, (plain.weights > 0).any(-1).astype(jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def _corrupt_batch(task: Corrupted, key: Array, plain: Batch) -> Batch:
    """Corrupt every window of a batch, each with its own key."""
    *shape, length = plain.inputs.shape
    keys = jax.random.split(key, int(np.prod(shape)))
    examples = jax.vmap(task.corrupt)(keys, jnp.asarray(plain.inputs).reshape(-1, length))
    batch = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), examples)
    return batch.replace(segments=plain.segments, positions=plain.positions)


class SpanCorruption(Corrupted):
    """Span corruption: an encoder reads a window without some spans, and a decoder predicts these spans.

    Of the L tokens of a window, n = round(density · L) are removed in k = round(n / mean_span) spans, each replaced by
    a sentinel. For the window a b c d e f g, the source may be a b ⟨0⟩ e f ⟨1⟩ and the target ⟨0⟩ c d ⟨1⟩ g end. The
    lengths of the k spans, and of the k stretches before them, are uniformly drawn among all lists of positive lengths
    with totals n and L − n. Every batch therefore has the same shape, without padding: S = L − n + k, T = n + k + 1.
    Raffel et al. 2020 use density 0.15 and mean_span 3.

    Start, end and the k sentinels are the ids after the text's own.
    """

    density: float = static(0.15, above=0, below=1)
    mean_span: float = static(3.0, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.text.length < 2:
            yield f"text.length is {self.text.length}; expected at least 2: one token each for source and target"
        if isinstance(self.text, TokenFiles) and self.text.pack != "none":
            yield f"text.pack is '{self.text.pack}'; expected 'none', since a span may cross the end of a document"

    @property
    def removed_tokens(self) -> int:
        """n, the number of tokens that are removed from a window."""
        return min(max(round(self.density * self.text.length), 1), self.text.length - 1)

    @property
    def spans(self) -> int:
        """k, the number of spans."""
        return min(max(round(self.removed_tokens / self.mean_span), 1), self.text.length - self.removed_tokens)

    @property
    def start(self) -> int:
        """Id of the decoder's first input."""
        return self.text.vocabulary

    @property
    def end(self) -> int:
        """Id of the last target."""
        return self.start + 1

    @property
    def vocabulary(self) -> int:
        return self.start + 2 + self.spans

    @property
    def sequence_length(self) -> int:
        return self.removed_tokens + self.spans + 1

    @property
    def source_length(self) -> int:
        return self.text.length - self.removed_tokens + self.spans

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        is_removed = self.draw_spans(key)
        is_first = is_removed & ~jnp.roll(is_removed, 1)  # the first token of a window is never removed
        sentinels = self.end + jnp.cumsum(is_first).astype(window.dtype)
        both = jnp.stack([sentinels, window], 1).reshape(-1)  # before each token, a place for a sentinel
        encoder_inputs = _select(both, jnp.stack([is_first, ~is_removed], 1).reshape(-1), self.source_length)
        spans = _select(both, jnp.stack([is_first, is_removed], 1).reshape(-1), self.sequence_length - 1)
        targets = jnp.append(spans, jnp.asarray(self.end, window.dtype))
        inputs = jnp.concatenate([jnp.full(1, self.start, window.dtype), targets[:-1]])
        return Batch(
            inputs=inputs, targets=targets, weights=jnp.ones(targets.shape, jnp.float32), source=encoder_inputs
        )

    def draw_spans(self, key: Array) -> Bool[Array, "length"]:
        """Return a mask that is True at the tokens of a window to remove."""
        remaining_key, removed_key = jax.random.split(key)
        remaining = _random_lengths(remaining_key, self.text.length - self.removed_tokens, self.spans)
        removed = _random_lengths(removed_key, self.removed_tokens, self.spans)
        ends = jnp.cumsum(jnp.stack([remaining, removed], 1).reshape(-1))
        return jnp.searchsorted(ends, jnp.arange(self.text.length), side="right") % 2 == 1

    def references(self) -> dict[str, float]:
        """Return the mean losses of a unigram model and of a bigram model over all targets.

        The bigram model reads the previous token of the window. Sentinels and the end count with loss 0.
        """
        evaluation = jax.device_get(self.load().evaluation())
        targets, encoder_inputs = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (evaluation.targets, evaluation.source))
        before = np.concatenate([targets[:, -1:], targets[:, :-1]], 1)
        row, place = np.nonzero(before > self.end)  # after a sentinel: the token before that sentinel in the source
        before[row, place] = encoder_inputs[row, np.argmax(encoder_inputs[row] == before[row, place][:, None], 1) - 1]
        is_text = targets < self.start
        unigram, bigram = self._count_model_losses(before[is_text], targets[is_text])
        return {"unigram": float(unigram.sum() / targets.size), "bigram": float(bigram.sum() / targets.size)}


def random_places(key: Array, size: int, count: int) -> Bool[Array, "size"]:
    """Return a mask that is True at `count` uniformly drawn places."""
    return jax.random.permutation(key, jnp.arange(size) < count)


def _random_lengths(key: Array, total: int, parts: int) -> Int[Array, "parts"]:
    """Return positive lengths with a given total, uniform over all such lists: parts − 1 of total − 1 borders."""
    borders = random_places(key, total - 1, parts - 1)
    part_of = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(borders).astype(jnp.int32)])
    return jnp.bincount(part_of, length=parts)


def _select(values: Int[Array, "n"], mask: Bool[Array, "n"], count: int) -> Int[Array, "count"]:
    """Return the values at the `count` places where the mask is True, in order."""
    return values[jnp.nonzero(mask, size=count)[0]]
