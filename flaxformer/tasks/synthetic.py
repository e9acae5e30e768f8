"""Tasks whose examples are drawn from random keys, with bitwise equal data on every machine."""

from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from flaxformer.core.params import fold_in_name
from flaxformer.core.struct import static
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source

EVALUATION_SEED = 2**31 - 1


class SyntheticTask(Task):
    """Base of synthetic tasks, which define `example`."""

    is_abstract: ClassVar[bool] = True

    def example(self, key: Array) -> Batch:
        """Return one example, without a batch axis, as a function of a random key."""
        raise NotImplementedError(f"{type(self).__name__} does not define `example`")

    def training_example(self, key: Array) -> Batch:
        """Return one example of a training batch, of the form of `example`; by default, `example` itself.

        A task overrides it that trains on other sizes or scores other tokens than it is evaluated on.
        """
        return self.example(key)

    @property
    def ceiling(self) -> float | None:
        """1 (a squared error of 0) where `chance` is stated; override it if the inputs do not determine all targets."""
        return None if self.chance is None else float(self.vocabulary is not None)

    def draw(self, key: Array, *, training: bool = False) -> Batch:
        """Return a batch of independent examples, of evaluation or of training."""
        example = self.training_example if training else self.example
        return jax.vmap(example)(jax.random.split(key, self.batch_size))

    def notes(self) -> list[str]:
        """Return a sentence with the chance level and the ceiling, if the task states them."""
        if self.chance is None or self.ceiling is None:
            return []
        measure = "accuracy" if self.vocabulary else "squared error"
        return [f"The {measure} is {self.chance:.3g} by chance and {self.ceiling:.3g} for a perfect solver."]

    def load(self) -> "SyntheticSource":
        return SyntheticSource(task=self)


class SyntheticSource(Source):
    """Source that draws the examples of a synthetic task."""

    task: SyntheticTask

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        return self.task.draw(jax.random.fold_in(key, step), training=True)

    def evaluation(self) -> Batch:
        return self._fixed_set(jax.random.key(EVALUATION_SEED))

    def test(self) -> Batch:
        """Return a set like the evaluation set, of other draws; with few possible examples, both may have the same."""
        return self._fixed_set(fold_in_name(jax.random.key(EVALUATION_SEED), "test"))

    def _fixed_set(self, key: Array) -> Batch:
        batches, batch_size = self.task.evaluation_shape
        return jax.lax.map(self.task.replace(batch_size=batch_size).draw, jax.random.split(key, batches))


def next_token(tokens: Int[Array, "T_plus_1"], scored: Bool[Array, "T_plus_1"]) -> Batch:
    """Return the next-token example of a sequence; `scored` is True at the tokens that count in the loss."""
    return Batch(inputs=tokens[:-1], targets=tokens[1:], weights=scored[1:].astype(jnp.float32))


def draw_distinct(key: Array, logits: Float[Array, "n"], count: int) -> Int[Array, "count"]:
    """Draw distinct indices one after another, each with a probability proportional to exp(logit) among those left.

    These are the indices of the greatest sums of logits and Gumbel noise, in descending order (Vieira 2014).
    """
    return jax.lax.top_k(logits + jax.random.gumbel(key, logits.shape, mode="high"), count)[1]


def join_pieces(
    pieces: Shaped[Array, "parts width"], lengths: Int[Array, "parts"], size: int, fill: int = 0
) -> Shaped[Array, "size"]:
    """Return the first `lengths[i]` entries of every piece i, one after another, then `fill` up to a fixed size."""
    within = jnp.arange(pieces.shape[1])[None]
    starts = jnp.cumsum(lengths) - lengths
    places = jnp.where(within < lengths[:, None], starts[:, None] + within, size)
    return jnp.full(size, fill, pieces.dtype).at[places.reshape(-1)].set(pieces.reshape(-1), mode="drop")


class AssociativeRecall(SyntheticTask):
    """Multi-query associative recall: predict the values of `queries` keys among `pairs` of a key and a value.

    The sequence is k₁ v₁ k₂ v₂ … q₁ a₁ q₂ a₂ …, with distinct keys and random values; the answers aᵢ are scored (Arora
    et al. 2023).
    """

    pairs: int = static(8, at_least=1)
    queries: int = static(4, at_least=1)
    keys: int = static(32, at_least=1)
    values: int = static(32, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.pairs > self.keys:
            yield f"pairs is {self.pairs}; expected at most the number of keys, {self.keys}"

    @property
    def vocabulary(self) -> int:
        return self.keys + self.values

    @property
    def sequence_length(self) -> int:
        return 2 * (self.pairs + self.queries) - 1

    @property
    def chance(self) -> float:
        return 1 / self.values

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_queries = jax.random.split(key, 3)
        keys = jax.random.permutation(for_keys, self.keys)[: self.pairs]
        values = self.keys + jax.random.randint(for_values, (self.pairs,), 0, self.values)
        asked = jax.random.randint(for_queries, (self.queries,), 0, self.pairs)
        tokens = jnp.stack([jnp.concatenate([keys, keys[asked]]), jnp.concatenate([values, values[asked]])], axis=1)
        place = jnp.arange(tokens.size)
        return next_token(tokens.reshape(-1), (place >= 2 * self.pairs) & (place % 2 == 1))


class Induction(SyntheticTask):
    """Induction: predict B at the end of … A B … A, where A occurs once before, at a random place.

    Only the last token is scored (the induction heads of Olsson et al. 2022). The distance and the successor of A are
    random, so that a head must find the token whose predecessor is A.
    """

    targets_in_inputs: ClassVar[bool] = False

    symbols: int = static(16, at_least=2)
    length: int = static(16, at_least=3)

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        """1 / (symbols − 1): the successor of A is another symbol."""
        return 1 / (self.symbols - 1)

    def example(self, key: Array) -> Batch:
        for_symbol, for_others, for_place = jax.random.split(key, 3)
        symbol = jax.random.randint(for_symbol, (), 0, self.symbols)
        other_symbols = jax.random.randint(for_others, (self.length,), 0, self.symbols - 1)
        tokens = other_symbols + (other_symbols >= symbol)  # any symbol but that one
        first = jax.random.randint(for_place, (), 0, self.length - 2)
        tokens = jnp.append(tokens.at[first].set(symbol).at[-1].set(symbol), tokens[first + 1])
        return next_token(tokens, jnp.arange(tokens.size) == self.length)
