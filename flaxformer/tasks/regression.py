"""Vectors in, numbers out: two small tasks that tell apart what attention can and cannot do."""

from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer.config import ModelConfig, Regressor, Vectors
from flaxformer.struct import static
from flaxformer.tasks.base import Batch
from flaxformer.tasks.synthetic import SyntheticTask


class VectorTask(SyntheticTask):
    """A task that gives vectors and asks for numbers."""

    is_abstract: ClassVar[bool] = True

    @property
    def vocabulary(self) -> int:
        return 0

    @property
    def inputs(self) -> Vectors:
        """Inputs of a model for this task."""
        raise NotImplementedError

    @property
    def head(self) -> Regressor:
        """Head of a model for this task, but for its bias."""
        raise NotImplementedError

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        inputs, head = model.inputs, model.head
        if inputs.reads != "vectors" or inputs.shape(model.sizes) not in (None, (self.inputs.width,)):
            yield f"model.inputs is {inputs}; expected {self.inputs}, which the task gives"
        if head.predicts != "numbers" or (head.outputs(0), head.pool) != (self.head.numbers, self.head.pool):
            yield f"model.head is {head}; expected {self.head}, for what the task asks"
        yield from self.length_problems(model)
        yield from self.source_problems(model)


class ScaledIndex(VectorTask):
    """y_n = n · x_n for n = 1 … length, x of `width` standard normal numbers a token; every token is scored.

    No model that is equivariant under permutations of the tokens can learn it ("What Happens in A Transformer
    Layer", second appendix): it takes positions, or a causal mask, whose model can count tokens where they differ.

    normalise: divide by length, so that y_n = (n / length) · x_n stays of the size of x.
    """

    length: int = static(16, at_least=1)
    width: int = static(1, at_least=1)
    normalise: bool = static(True)

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def inputs(self) -> Vectors:
        return Vectors(width=self.width)

    @property
    def head(self) -> Regressor:
        return Regressor(numbers=self.width, pool="none")

    @property
    def scale(self) -> float:
        """Factor of n."""
        return 1 / self.length if self.normalise else 1.0

    def example(self, key: Array) -> Batch:
        vectors = jax.random.normal(key, (self.length, self.width))
        targets = self.scale * jnp.arange(1, self.length + 1)[:, None] * vectors
        return Batch(inputs=vectors, targets=targets, weights=jnp.ones(self.length))

    def references(self) -> dict[str, float]:
        """The least expected loss of a model without positions and without a mask.

        Such a model knows x_n and the set of all tokens, from which every n is as likely. Its best answer is
        E[n] · x_n, and its loss Var(n) · E[x²] = (length² − 1) / 12, times the square of the scale.
        """
        return {"position-blind": self.scale**2 * (self.length**2 - 1) / 12}


class TwoTargetAverage(VectorTask):
    """Read `items`, each a key and a value; the last token asks for two keys: answer with the mean of their values.

    An item is (k_j, 0, v_j) and the query (k_a, k_b, 0), with a ≠ b; keys of `key_width` and values of `value_width`
    standard normal numbers. One head of one layer that attends to both targets must keep their logits equal, and
    above all others, for keys of different lengths; two heads pick one value each ("Self-Attention and Transformers,
    a mathematical approach": averaging two things is a balancing game). A second layer can fetch the second value.
    """

    items: int = static(8, at_least=2)
    key_width: int = static(8, at_least=1)
    value_width: int = static(4, at_least=1)

    @property
    def sequence_length(self) -> int:
        return self.items + 1

    @property
    def inputs(self) -> Vectors:
        return Vectors(width=2 * self.key_width + self.value_width)

    @property
    def head(self) -> Regressor:
        return Regressor(numbers=self.value_width, pool="last")

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_targets = jax.random.split(key, 3)
        keys = jax.random.normal(for_keys, (self.items, self.key_width))
        values = jax.random.normal(for_values, (self.items, self.value_width))
        asked = jax.random.permutation(for_targets, self.items)[:2]
        items = jnp.concatenate([keys, jnp.zeros_like(keys), values], axis=1)
        query = jnp.concatenate([keys[asked].reshape(-1), jnp.zeros(self.value_width)])
        vectors = jnp.concatenate([items, query[None]])
        return Batch(inputs=vectors, targets=values[asked].mean(0), weights=jnp.ones(()))

    def references(self) -> dict[str, float]:
        """Expected losses: of the mean of all values, and of half the value of one of the two targets."""
        return {"all values": 1 / 2 - 1 / self.items, "one target": 1 / 4}
