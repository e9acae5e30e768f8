"""Regression from vectors: two small tasks for what attention can and cannot compute."""

from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer.components import Regressor, Vectors
from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.synthetic import SyntheticTask


def vector_problems(model: ModelConfig, inputs: Vectors, head: Regressor | None = None) -> Iterator[str]:
    """Yield a message if a model does not read these vectors, or (if a head is given) does not predict its numbers."""
    if model.inputs.reads != "vectors" or model.inputs.shape(model.sizes) not in (None, (inputs.width,)):
        yield f"model.inputs is {model.inputs}; expected {inputs}, as the task's inputs"
    predicted = model.head
    if head and (predicted.predicts, predicted.outputs(0), predicted.pool) != ("numbers", head.numbers, head.pool):
        yield f"model.head is {predicted}; expected {head}, for the task's targets"


class VectorTask(SyntheticTask):
    """Base of tasks with vectors as inputs and numbers as targets."""

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
        """Head of a model for this task; its bias is free."""
        raise NotImplementedError

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from vector_problems(model, self.inputs, self.head)
        yield from self.length_problems(model)
        yield from self.source_problems(model)


class ScaledIndex(VectorTask):
    """Predict y_n = n · x_n for n = 1 … length, where x_n are `width` standard normal numbers; every token is scored.

    No model that is equivariant to permutations of the tokens can learn this ("What Happens in A Transformer Layer",
    second appendix). With positions, or with a causal mask that lets a model count tokens, it can be learned.

    normalise: divide by length, so that y_n = (n / length) · x_n has the scale of x.
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
        """Return the smallest expected loss of a model without positions and without a mask.

        Given x_n and the set of all tokens, every n is equally likely. The best prediction is E[n] · x_n, with the loss
        Var(n) · E[x²] = (length² − 1) / 12, times the square of the scale.
        """
        return {"position-blind": self.scale**2 * (self.length**2 - 1) / 12}


class TwoTargetAverage(VectorTask):
    """Predict the mean of two values among `items` pairs of a key and a value; the last token has the two keys.

    An item is (k_j, 0, v_j) and the query is (k_a, k_b, 0) with a ≠ b. Keys are `key_width` and values `value_width`
    standard normal numbers. A single head in one layer needs equal logits for both keys, above all others, although
    their norms differ; with two heads, each can select one value ("Self-Attention and Transformers, a mathematical
    approach": averaging two things is a balancing game). A second layer can also select the second value.
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
        """Return the expected losses of predicting the mean of all values, or half the value of one target."""
        return {"all values": 1 / 2 - 1 / self.items, "one target": 1 / 4}
