"""Tasks whose data are drawn as they are needed: bit for bit the same on every machine."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer.struct import static
from flaxformer.tasks.base import Batch, Source, Task

EVALUATION_SEED = 2**31 - 1


class SyntheticTask(Task):
    """A task that can write one sequence, and say which of its tokens are to be predicted."""

    def sequence(self, key: Array) -> tuple[Int[Array, "T_plus_1"], Int[Array, "T_plus_1"]]:
        """One sequence, and 1 at the tokens that are scored."""
        raise NotImplementedError

    def draw(self, key: Array) -> Batch:
        """A batch of independent sequences."""
        tokens, scored = jax.vmap(self.sequence)(jax.random.split(key, self.batch_size))
        return Batch(inputs=tokens[:, :-1], targets=tokens[:, 1:], weights=scored[:, 1:].astype(jnp.float32))

    def load(self) -> "SyntheticSource":
        return SyntheticSource(task=self)


class SyntheticSource(Source):
    """Draws batches from the task itself."""

    task: SyntheticTask

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        return self.task.draw(jax.random.fold_in(key, step))

    def evaluation(self) -> Batch:
        return jax.lax.map(
            self.task.draw, jax.random.split(jax.random.key(EVALUATION_SEED), self.task.evaluation_batches)
        )


class Copy(SyntheticTask):
    """Read `length` random symbols and a separator, then write the symbols again; the second half is scored."""

    symbols: int = static(16, at_least=2)
    length: int = static(8, at_least=1)

    @property
    def vocabulary(self) -> int:
        return self.symbols + 1

    @property
    def sequence_length(self) -> int:
        return 2 * self.length

    def sequence(self, key: Array) -> tuple[Int[Array, "T_plus_1"], Int[Array, "T_plus_1"]]:
        symbols = jax.random.randint(key, (self.length,), 0, self.symbols)
        tokens = jnp.concatenate([symbols, jnp.array([self.symbols]), symbols])
        return tokens, jnp.arange(tokens.size) > self.length


class AssociativeRecall(SyntheticTask):
    """Read `pairs` of distinct keys with random values, then answer `queries` keys with their values.

    k₁ v₁ k₂ v₂ … then q₁ a₁ q₂ a₂ …; the answers are scored (multi-query associative recall, Arora et al. 2023).
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

    def sequence(self, key: Array) -> tuple[Int[Array, "T_plus_1"], Int[Array, "T_plus_1"]]:
        for_keys, for_values, for_queries = jax.random.split(key, 3)
        keys = jax.random.permutation(for_keys, self.keys)[: self.pairs]
        values = self.keys + jax.random.randint(for_values, (self.pairs,), 0, self.values)
        asked = jax.random.randint(for_queries, (self.queries,), 0, self.pairs)
        tokens = jnp.stack([jnp.concatenate([keys, keys[asked]]), jnp.concatenate([values, values[asked]])], axis=1)
        place = jnp.arange(tokens.size)
        return tokens.reshape(-1), (place >= 2 * self.pairs) & (place % 2 == 1)
