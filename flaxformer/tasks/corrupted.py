"""A text with parts of it hidden, which are to be said: masked language modelling, and span corruption.

Both are pure functions of (key, step): the windows are those that the text itself would give for that key and step.
Sources: Devlin et al. 2019, section 3.1, task 1 (masked tokens); Raffel et al. 2020, section 3.1.4 (spans).
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flaxformer.data.corpus import count_models
from flaxformer.params import fold_in_name
from flaxformer.struct import part, static
from flaxformer.tasks.base import Batch, Source, Task
from flaxformer.tasks.text import StandardLibrary, TextFiles
from flaxformer.tasks.token_files import COUNTED, TokenFiles


class Corrupted(Task):
    """Base: windows of `text`, each corrupted by a key of its own; `text.length` tokens are read before corruption.

    How many windows a batch and the evaluation set have is said here, and left at its default in `text`.
    """

    is_abstract: ClassVar[bool] = True

    text: StandardLibrary | TextFiles | TokenFiles = part(StandardLibrary())

    @property
    def packs_documents(self) -> bool:
        return self.text.packs_documents

    def problems(self) -> Iterator[str]:
        for field in dataclasses.fields(Task):
            if (found := getattr(self.text, field.name)) != field.default:
                yield f"text.{field.name} is {found}; leave it out: {type(self).__name__}.{field.name} decides"

    def load(self) -> "CorruptedSource":
        sized = self.text.replace(batch_size=self.batch_size, evaluation_batches=self.evaluation_batches)
        return CorruptedSource(sized.load(), self)

    def fingerprint(self) -> dict[str, Any]:
        return self.text.fingerprint()

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        """Return the inputs and targets of one window."""
        raise NotImplementedError

    def _counted(self, before: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return count_models(self.text.tokens()[0][:COUNTED], before, targets, self.text.vocabulary)


class CorruptedSource(Source):
    """The source of a text, whose windows are corrupted."""

    text: Source
    task: Corrupted = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        return _corrupted(
            self.task, fold_in_name(jax.random.fold_in(key, step), "corruption"), self.text.batch(key, step)
        )

    def evaluation(self) -> Batch:
        return _corrupted(self.task, fold_in_name(jax.random.key(0), "corruption"), self.text.evaluation())


@functools.partial(jax.jit, static_argnums=0)
def _corrupted(task: Corrupted, key: Array, plain: Batch) -> Batch:
    """Every window of a batch, by a key for each."""
    *shape, length = plain.inputs.shape
    keys = jax.random.split(key, int(np.prod(shape)))
    rows = jax.vmap(task.corrupt)(keys, jnp.asarray(plain.inputs).reshape(-1, length))
    batch = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), rows)
    return batch.replace(segments=plain.segments, positions=plain.positions)


class MaskedTokens(Corrupted):
    """Predict the tokens that are hidden at a `rate` of the places, with a bidirectional model.

    round(rate · L) places of each window are chosen. Of these a share `masked` reads the mask, the id after the
    text's own, a share `random` any token of the text, uniformly, and the rest the token itself; they alone are
    scored. Devlin et al. 2019: 0.15, 0.8, 0.1.
    """

    targets_in_inputs: ClassVar[bool] = False

    rate: float = static(0.15, above=0, at_most=1)
    masked: float = static(0.8, at_least=0, at_most=1)
    random: float = static(0.1, at_least=0, at_most=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.masked + self.random > 1 + 1e-9:
            yield f"masked and random are {self.masked} and {self.random}; expected at most 1 together"
        if not self.chosen:
            yield f"rate is {self.rate}, no place of a window of {self.text.length} tokens; expected one at least"

    @property
    def chosen(self) -> int:
        """Number of places of a window that are scored."""
        return round(self.rate * self.text.length)

    @property
    def mask(self) -> int:
        """The id that hides a token."""
        return self.text.vocabulary

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary + 1

    @property
    def sequence_length(self) -> int:
        return self.text.length

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        place_key, kind_key, token_key = jax.random.split(key, 3)
        chosen = _some(place_key, window.size, self.chosen)
        kind = jax.random.uniform(kind_key, window.shape)
        others = jax.random.randint(token_key, window.shape, 0, self.text.vocabulary)
        read = jnp.where(kind < self.masked, self.mask, jnp.where(kind < self.masked + self.random, others, window))
        return Batch(inputs=jnp.where(chosen, read, window), targets=window, weights=chosen.astype(jnp.float32))

    def references(self) -> dict[str, float]:
        """At the places that are scored: unigram; and bigram, where the token before is in the window and not hidden
        (elsewhere unigram). A model reads the token after as well, and may pass both.
        """  # fmt: skip
        found = jax.device_get(self.load().evaluation())
        scored, before = found.weights > 0, np.roll(found.targets, 1, -1)
        seen = ~np.roll(scored, 1, -1)
        seen[..., 0] = False
        if found.segments is not None:
            seen[..., 1:] &= found.segments[..., 1:] == found.segments[..., :-1]
        unigram, bigram = self._counted(before[scored], found.targets[scored])
        return {
            "unigram": float(unigram.mean()),
            "bigram": float(np.where(seen[scored], bigram, unigram).mean()),
        }


class SpanCorruption(Corrupted):
    """Say the spans that are cut out of a window: an encoder reads the rest, a decoder says what is missing.

    Of L tokens n = round(density · L) are cut, in k = round(n / mean_span) spans, each a sentinel in what is left:
    read  a b ⟨0⟩ e f ⟨1⟩,  said  ⟨0⟩ c d ⟨1⟩ g end,  for the window a b c d e f g. How n tokens fall into k spans, and
    the L − n others into the k stretches before them, is uniform over all ways without an empty one. So every batch
    has one shape and no padding: S = L − n + k, T = n + k + 1. Raffel et al. 2020: density 0.15, mean_span 3.

    Start, end and the k sentinels are the ids after the text's own.
    """

    density: float = static(0.15, above=0, below=1)
    mean_span: float = static(3.0, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.text.length < 2:
            yield f"text.length is {self.text.length}; expected at least 2, one token to read and one to say"
        if isinstance(self.text, TokenFiles) and self.text.pack != "none":
            yield f"text.pack is '{self.text.pack}'; expected 'none', for a span may cross the end of a document"

    @property
    def cut(self) -> int:
        """n, the tokens of a window that are cut out."""
        return min(max(round(self.density * self.text.length), 1), self.text.length - 1)

    @property
    def spans(self) -> int:
        """k, in how many spans."""
        return min(max(round(self.cut / self.mean_span), 1), self.text.length - self.cut)

    @property
    def start(self) -> int:
        """The id before what is said."""
        return self.text.vocabulary

    @property
    def end(self) -> int:
        """The id after what is said."""
        return self.start + 1

    @property
    def vocabulary(self) -> int:
        return self.start + 2 + self.spans

    @property
    def sequence_length(self) -> int:
        return self.cut + self.spans + 1

    @property
    def source_length(self) -> int:
        return self.text.length - self.cut + self.spans

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        cut = self._places(key)
        begins = cut & ~jnp.roll(cut, 1)  # the first token is never cut
        sentinels = self.end + jnp.cumsum(begins).astype(window.dtype)
        both = jnp.stack([sentinels, window], 1).reshape(-1)  # a sentinel's place before every token
        source = _chosen(both, jnp.stack([begins, ~cut], 1).reshape(-1), self.source_length)
        spans = _chosen(both, jnp.stack([begins, cut], 1).reshape(-1), self.sequence_length - 1)
        said = jnp.append(spans, jnp.asarray(self.end, window.dtype))
        read = jnp.concatenate([jnp.full(1, self.start, window.dtype), said[:-1]])
        return Batch(inputs=read, targets=said, weights=jnp.ones(said.shape, jnp.float32), source=source)

    def _places(self, key: Array) -> Bool[Array, "length"]:
        """True at the tokens that are cut out: stretches that stay and stretches that go in turn."""
        stay_key, go_key = jax.random.split(key)
        stay = _lengths(stay_key, self.text.length - self.cut, self.spans)
        go = _lengths(go_key, self.cut, self.spans)
        ends = jnp.cumsum(jnp.stack([stay, go], 1).reshape(-1))
        return jnp.searchsorted(ends, jnp.arange(self.text.length), side="right") % 2 == 1

    def references(self) -> dict[str, float]:
        """Unigram; and bigram, the token before being the last that is read or said. Sentinels and the end are taken
        as known, at no loss: they are in the mean, as in the loss of a model.
        """  # fmt: skip
        found = jax.device_get(self.load().evaluation())
        said, source = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (found.targets, found.source))
        before = np.concatenate([said[:, -1:], said[:, :-1]], 1)
        row, place = np.nonzero(before > self.end)  # after a sentinel: the token before that sentinel in the source
        before[row, place] = source[row, np.argmax(source[row] == before[row, place][:, None], 1) - 1]
        words = said < self.start
        unigram, bigram = self._counted(before[words], said[words])
        return {"unigram": float(unigram.sum() / said.size), "bigram": float(bigram.sum() / said.size)}


def _some(key: Array, size: int, count: int) -> Bool[Array, "size"]:
    """True at `count` of `size` places, any of them as likely as any other."""
    return jax.random.permutation(key, jnp.arange(size) < count)


def _lengths(key: Array, total: int, parts: int) -> Int[Array, "parts"]:
    """`parts` lengths of at least 1 with that total, uniform over all such lists: parts − 1 borders between items."""
    borders = _some(key, total - 1, parts - 1)
    part_of = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(borders).astype(jnp.int32)])
    return jnp.bincount(part_of, length=parts)


def _chosen(values: Int[Array, "n"], present: Bool[Array, "n"], count: int) -> Int[Array, "count"]:
    """The values at the `count` places that are there, in their order."""
    return values[jnp.nonzero(present, size=count)[0]]
