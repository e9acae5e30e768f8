"""Sources with tables of examples: training draws rows of one table, evaluation reads the rows of another."""

import math
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source


class ExampleSource(Source):
    """Training and held-out examples, each as a `Batch` with all rows."""

    train: Batch
    held_out: Batch
    task: Task = flax.struct.field(pytree_node=False)
    tested: Batch | None = None
    """Test examples; None for the held-out ones that are not in the evaluation set."""

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Return rows that are drawn independently, so that an example may occur twice in a batch."""
        return draw_rows(jax.random.fold_in(key, step), self.train, self.task.batch_size)

    def evaluation(self) -> Batch:
        """Return evenly spaced rows of the held-out examples; if there are too few, each is scored once."""
        return evaluation_set(self.held_out, self.task)

    def test(self) -> Batch | None:
        """Return evenly spaced rows of the test examples; None if there are none."""
        return test_set(self.held_out, self.task, self.tested)

    def training_examples(self) -> Sequence[Batch]:
        return [self.train]


class BucketedSource(Source):
    """Training examples in tables of different lengths, and held-out examples in one table.

    A training batch is a tuple with an equal number of rows of each table, and so has static shapes.
    """

    buckets: tuple[Batch, ...]
    held_out: Batch
    task: Task = flax.struct.field(pytree_node=False)
    tested: Batch | None = None

    def batch(self, key: Array, step: int | Int[Array, ""]) -> tuple[Batch, ...]:
        """Return rows of each table that are drawn independently."""
        keys = jax.random.split(jax.random.fold_in(key, step), len(self.buckets))
        rows = self.task.batch_size // len(self.buckets)
        return tuple(draw_rows(key, examples, rows) for key, examples in zip(keys, self.buckets, strict=True))

    def evaluation(self) -> Batch:
        """Return the evaluation set, as without buckets."""
        return evaluation_set(self.held_out, self.task)

    def test(self) -> Batch | None:
        """Return the test set, as without buckets."""
        return test_set(self.held_out, self.task, self.tested)

    def training_examples(self) -> Sequence[Batch]:
        return self.buckets


def draw_rows(key: Array, examples: Batch, count: int) -> Batch:
    """Draw rows of a table with replacement."""
    return take_rows(examples, jax.random.randint(key, (count,), 0, len(examples.inputs)))


def evaluation_set(held_out: Batch, task: Task) -> Batch:
    """Return the evaluation set of a task, of shape [*evaluation_shape, ...], from a table."""
    rows, weights = sample_evenly(len(held_out.inputs), math.prod(task.evaluation_shape))
    return _scored_rows(held_out, rows, weights, task)


def test_set(held_out: Batch, task: Task, tested: Batch | None) -> Batch | None:
    """Return the test set of a task, of the same shape: of a table of its own, or of the other held-out rows."""
    if tested is not None:
        return evaluation_set(tested, task)
    size = math.prod(task.evaluation_shape)
    unused_rows = np.setdiff1d(np.arange(len(held_out.inputs)), sample_evenly(len(held_out.inputs), size)[0])
    if not unused_rows.size:
        return None
    rows, weights = sample_evenly(unused_rows.size, size)
    return _scored_rows(held_out, unused_rows[rows], weights, task)


def _scored_rows(held_out: Batch, rows: np.ndarray, weights: np.ndarray, task: Task) -> Batch:
    """Return rows of a table in the shape of the evaluation set, with factors of their weights."""
    batch = take_rows(held_out, jnp.asarray(rows).reshape(task.evaluation_shape))
    return scale_weights(batch, weights.reshape(task.evaluation_shape))


def scale_weights(batch: Batch, factors: Array | np.ndarray) -> Batch:
    """Return batches whose examples, [batches, B], have their weights times these factors."""
    return batch.replace(weights=batch.weights * factors.reshape(factors.shape + (1,) * (batch.weights.ndim - 2)))


def take_rows(examples: Batch, rows: Int[Array, "*batch"]) -> Batch:
    """Return rows of a table, with token ids converted to int32 from narrower types."""

    def take(column: Array) -> Array:
        chosen = jnp.asarray(column)[rows]
        return chosen.astype(jnp.int32) if jnp.issubdtype(chosen.dtype, jnp.unsignedinteger) else chosen

    return jax.tree.map(take, examples)


def sample_evenly(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `size` evenly spaced indices of `count` rows, and weights 1, or 0 where a row occurs again."""
    if size <= count:
        return np.linspace(0, count - 1, size).astype(int), np.ones(size, np.float32)
    return np.arange(size) % count, (np.arange(size) < count).astype(np.float32)


def permute(count: int, seed: int) -> np.ndarray:
    """Return 0 … count − 1 in an order that depends only on the seed, on every machine."""
    return np.random.RandomState(seed).permutation(count)  # NumPy guarantees that this stream never changes
