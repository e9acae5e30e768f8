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
        rows = jax.random.randint(jax.random.fold_in(key, step), (self.task.batch_size,), 0, len(self.train.inputs))
        return take(self.train, rows)

    def evaluation(self) -> Batch:
        """Rows spread evenly over the held-out side; where there are fewer than asked for, each counts once."""
        shape = (self.task.evaluation_batches, self.task.batch_size)
        rows, counted = spread(len(self.held_out.inputs), shape[0] * shape[1])
        batch = take(self.held_out, jnp.asarray(rows).reshape(shape))
        counted = counted.reshape(shape + (1,) * (batch.weights.ndim - 2))
        return batch.replace(weights=batch.weights * counted)


def take(examples: Batch, rows: Int[Array, "*batch"]) -> Batch:
    """Rows of a table, with token ids as int32 whatever width they are kept in."""

    def rows_of(column: Any) -> Array:
        chosen = jnp.asarray(column)[rows]
        return chosen.astype(jnp.int32) if jnp.issubdtype(chosen.dtype, jnp.unsignedinteger) else chosen

    return jax.tree.map(rows_of, examples)


def spread(count: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
    """`asked` places among `count` rows, spread evenly, and 1 at those to be counted: no row counts twice."""
    if asked <= count:
        return np.linspace(0, count - 1, asked).astype(int), np.ones(asked, np.float32)
    return np.arange(asked) % count, (np.arange(asked) < count).astype(np.float32)


def shuffled(count: int, seed: int) -> np.ndarray:
    """0 … count − 1 in an order that is a function of the seed alone, on every machine."""
    return np.random.RandomState(seed).permutation(count)  # a stream that NumPy promises never to change
