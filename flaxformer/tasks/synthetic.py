"""Tasks whose data are drawn as they are needed: bit for bit the same on every machine."""

from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.struct import static
from flaxformer.tasks.base import Batch, Source, Task

EVALUATION_SEED = 2**31 - 1


class SyntheticTask(Task):
    """A task that can write one example."""

    is_abstract: ClassVar[bool] = True

    def example(self, key: Array) -> Batch:
        """One example, without a batch axis."""
        raise NotImplementedError(f"{type(self).__name__} does not define `example`")

    def draw(self, key: Array) -> Batch:
        """A batch of independent examples."""
        return jax.vmap(self.example)(jax.random.split(key, self.batch_size))

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


def next_token(tokens: Int[Array, "T_plus_1"], scored: Bool[Array, "T_plus_1"]) -> Batch:
    """One sequence as a language model learns it: each token from those before it, where it is scored."""
    return Batch(inputs=tokens[:-1], targets=tokens[1:], weights=scored[1:].astype(jnp.float32))


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

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_queries = jax.random.split(key, 3)
        keys = jax.random.permutation(for_keys, self.keys)[: self.pairs]
        values = self.keys + jax.random.randint(for_values, (self.pairs,), 0, self.values)
        asked = jax.random.randint(for_queries, (self.queries,), 0, self.pairs)
        tokens = jnp.stack([jnp.concatenate([keys, keys[asked]]), jnp.concatenate([values, values[asked]])], axis=1)
        place = jnp.arange(tokens.size)
        return next_token(tokens.reshape(-1), (place >= 2 * self.pairs) & (place % 2 == 1))


class Induction(SyntheticTask):
    """Random symbols, of which the last stands once before, at a random place: say what came after it there.

    … A B … A -> B; the last token is scored (the induction heads of Olsson et al. 2022). No fixed distance and no
    fixed successor gives the answer: it takes a head that looks for A among the tokens' predecessors.
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

    def example(self, key: Array) -> Batch:
        for_symbol, for_others, for_place = jax.random.split(key, 3)
        symbol = jax.random.randint(for_symbol, (), 0, self.symbols)
        others = jax.random.randint(for_others, (self.length,), 0, self.symbols - 1)
        tokens = others + (others >= symbol)  # any symbol but that one
        first = jax.random.randint(for_place, (), 0, self.length - 2)
        tokens = jnp.append(tokens.at[first].set(symbol).at[-1].set(symbol), tokens[first + 1])
        return next_token(tokens, jnp.arange(tokens.size) == self.length)
