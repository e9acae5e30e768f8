"""Tasks with a table of examples: training draws rows of one side, evaluation reads the other side through."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flaxformer.tasks.base import Batch, Source, Task


class ExampleSource(Source):
    """Examples to train on and examples held out, each side one `Batch` of all its rows."""

    train: Batch
    held_out: Batch
    task: Task = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Rows drawn independently: an example may come twice in a batch."""
        return draw(jax.random.fold_in(key, step), self.train, self.task.batch_size)

    def evaluation(self) -> Batch:
        """Rows spread evenly over the held-out side; where there are fewer than asked for, each counts once."""
        return read_through(self.held_out, self.task)


class BucketedSource(Source):
    """Examples to train on in tables that differ in length, and examples held out in one.

    A training batch has a part from each table, all of as many rows: one tuple of static shapes.
    """

    buckets: tuple[Batch, ...]
    held_out: Batch
    task: Task = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> tuple[Batch, ...]:
        """Rows of each table drawn independently."""
        keys = jax.random.split(jax.random.fold_in(key, step), len(self.buckets))
        rows = self.task.batch_size // len(self.buckets)
        return tuple(draw(key, examples, rows) for key, examples in zip(keys, self.buckets, strict=True))

    def evaluation(self) -> Batch:
        """As without buckets."""
        return read_through(self.held_out, self.task)


def draw(key: Array, examples: Batch, count: int) -> Batch:
    """Draw rows of a table, with replacement."""
    return take(examples, jax.random.randint(key, (count,), 0, len(examples.inputs)))


def read_through(held_out: Batch, task: Task) -> Batch:
    """The evaluation set of a task, [evaluation_batches, batch_size, ...], from a table."""
    shape = (task.evaluation_batches, task.batch_size)
    rows, counted = evenly(len(held_out.inputs), shape[0] * shape[1])
    batch = take(held_out, jnp.asarray(rows).reshape(shape))
    counted = counted.reshape(shape + (1,) * (batch.weights.ndim - 2))
    return batch.replace(weights=batch.weights * counted)


def take(examples: Batch, rows: Int[Array, "*batch"]) -> Batch:
    """Rows of a table, with token ids as int32 whatever width they are kept in."""

    def rows_of(column: Any) -> Array:
        chosen = jnp.asarray(column)[rows]
        return chosen.astype(jnp.int32) if jnp.issubdtype(chosen.dtype, jnp.unsignedinteger) else chosen

    return jax.tree.map(rows_of, examples)


def evenly(count: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
    """`asked` places among `count` rows, spread evenly, and 1 at those to be counted: no row counts twice."""
    if asked <= count:
        return np.linspace(0, count - 1, asked).astype(int), np.ones(asked, np.float32)
    return np.arange(asked) % count, (np.arange(asked) < count).astype(np.float32)


def shuffled(count: int, seed: int) -> np.ndarray:
    """0 … count − 1 in an order that is a function of the seed alone, on every machine."""
    return np.random.RandomState(seed).permutation(count)  # a stream that NumPy promises never to change
