"""Denoising tasks on text: masked language modelling and span corruption.

Batches are pure functions of (key, step), and the windows are those of the text's own task for that key and step.
Sources: Devlin et al. 2019, section 3.1, task 1 (masked tokens); Raffel et al. 2020, section 3.1.4 (spans).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from flaxformer.core.params import fold_in_name
from flaxformer.core.struct import part, static
from flaxformer.data.corpus import count_model_losses_by_target
from flaxformer.model.sampling import Sampling, filter_logits
from flaxformer.system.errors import UserError
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.examples import scale_weights
from flaxformer.tasks.overlap import SAMPLE, Overlap
from flaxformer.tasks.text import COUNTED, StandardLibrary, TextFiles
from flaxformer.tasks.token_files import TokenFiles

LogitsOf = Callable[[Int[Array, "B T"]], Float[Array, "B T V"]]
"""Function from the tokens of rows to the logits at each of them."""


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


class MaskedText(Corrupted):
    """Windows of L tokens of a text in which some are replaced by a mask token, the id after the text's own."""

    is_abstract: ClassVar[bool] = True
    targets_in_inputs: ClassVar[bool] = False

    @property
    def mask(self) -> int:
        """Id of the mask token."""
        return self.text.vocabulary

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary + 1

    @property
    def sequence_length(self) -> int:
        return self.text.length

    @property
    def generates(self) -> bool:
        """True if the task has a way to `fill_in` masked tokens."""
        return type(self).fill_in is not MaskedText.fill_in

    def complete(
        self,
        logits_of: LogitsOf,
        tokens: Int[ArrayLike, "*batch T"],
        *,
        steps: int,
        sampling: Sampling,
        key: Array,
    ) -> Int[Array, "*batch steps"]:
        """Return `steps` tokens that follow others: masked ones, which `fill_in` replaces.

        Args:
          logits_of: the model.
          sampling: distribution that each token is drawn from; the mask token is never drawn.

        Raises:
          UserError: the task has no `fill_in`, or steps is below 1.
        """
        if steps < 1:
            raise UserError(f"tokens is {steps}; expected at least 1")

        def filtered(rows: Int[Array, "B T"]) -> Float[Array, "B T V"]:
            return filter_logits(logits_of(rows).at[..., self.mask].set(-jnp.inf), sampling)

        read = jnp.asarray(tokens)
        masked = jnp.pad(read, [*((0, 0) for _ in read.shape[1:]), (0, steps)], constant_values=self.mask)
        filled = self.fill_in(filtered, jnp.atleast_2d(masked), key)
        return filled.reshape(masked.shape)[..., read.shape[-1] :]

    def fill_in(
        self,
        logits_of: LogitsOf,
        tokens: Int[Array, "B T"],
        key: Array,
    ) -> Int[Array, "B T"]:
        """Return tokens with all masked ones replaced by samples of a model; a task whose model generates defines it.

        Args:
          logits_of: logits of the distributions that tokens are drawn from, of all tokens of a row.
          tokens: known tokens, and `mask` at all others.
          key: of the draws.

        Raises:
          UserError: the task does not define it.
        """
        name = type(self).__name__
        raise UserError(f"{name} has no `fill_in`; expected a task whose model generates text, such as MaskedDiffusion")


class MaskedTokens(MaskedText):
    """Masked language modelling: predict tokens at randomly chosen places, with a bidirectional model.

    In each window of L tokens, round(rate · L) places are chosen, and only these are scored. At a share `masked` of
    them the input is the mask token (the id after the text's own), at a share `random` a uniformly drawn token, and at
    the rest the token itself. Devlin et al. 2019 use 0.15, 0.8 and 0.1.
    """

    rate: float = static(0.15, above=0, at_most=1)
    masked: float = static(0.8, at_least=0, at_most=1)
    random: float = static(0.1, at_least=0, at_most=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.masked + self.random > 1 + 1e-9:
            yield f"masked and random are {self.masked} and {self.random}; expected at most 1 together"
        if not self.scored_places:
            places = f"0 places of a window of {self.text.length} tokens"
            yield f"rate is {self.rate}, which chooses {places}; expected at least one"

    @property
    def scored_places(self) -> int:
        """Number of scored places per window."""
        return round(self.rate * self.text.length)

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        place_key, kind_key, token_key = jax.random.split(key, 3)
        chosen = _random_places(place_key, window.size, self.scored_places)
        kind = jax.random.uniform(kind_key, window.shape)
        random_tokens = jax.random.randint(token_key, window.shape, 0, self.text.vocabulary)
        read = jnp.where(
            kind < self.masked, self.mask, jnp.where(kind < self.masked + self.random, random_tokens, window)
        )
        return Batch(inputs=jnp.where(chosen, read, window), targets=window, weights=chosen.astype(jnp.float32))

    def references(self) -> dict[str, float]:
        """Return the losses, at scored places, of a unigram model and of a bigram model.

        If the previous token is hidden or outside of the window, the bigram model uses the unigram probability. A
        trained model also reads the tokens after a place, and may be better than both.
        """
        evaluation = jax.device_get(self.load().evaluation())
        scored, before = evaluation.weights > 0, np.roll(evaluation.targets, 1, -1)
        is_visible = ~np.roll(scored, 1, -1)
        is_visible[..., 0] = False
        if evaluation.segments is not None:
            is_visible[..., 1:] &= evaluation.segments[..., 1:] == evaluation.segments[..., :-1]
        unigram, bigram = self._count_model_losses(before[scored], evaluation.targets[scored])
        return {
            "unigram": float(unigram.mean()),
            "bigram": float(np.where(is_visible[scored], bigram, unigram).mean()),
        }


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


def _random_places(key: Array, size: int, count: int) -> Bool[Array, "size"]:
    """Return a mask that is True at `count` uniformly drawn places."""
    return jax.random.permutation(key, jnp.arange(size) < count)


def _random_lengths(key: Array, total: int, parts: int) -> Int[Array, "parts"]:
    """Return positive lengths with a given total, uniform over all such lists: parts − 1 of total − 1 borders."""
    borders = _random_places(key, total - 1, parts - 1)
    part_of = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(borders).astype(jnp.int32)])
    return jnp.bincount(part_of, length=parts)


def _select(values: Int[Array, "n"], mask: Bool[Array, "n"], count: int) -> Int[Array, "count"]:
    """Return the values at the `count` places where the mask is True, in order."""
    return values[jnp.nonzero(mask, size=count)[0]]
