"""Mano: arithmetic modulo 23 of an expression in prefix notation, without intermediate steps.

    ⟨start⟩ ⟨n⟩ + × a b − c d ⟨=⟩ y, with n operations; the operands of an operation share the others at random

Family: tasks
Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
arXiv:2512.17351; github.com/facebookresearch/PhysicsLM4 at 7580696, mano.py with "asm" (add, subtract, multiply).
Claim: it measures how knowledge is manipulated within the layers, which Canon layers improve.
Cost: none; all tokens are scored in training, the result in evaluation.
Verified: counts of lengths, operations and results of the published generator; a recursive evaluation in Python.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer import Batch, SyntheticTask, next_token, static

OPERATIONS = 3


class Mano(SyntheticTask):
    """Predict the value of an expression of `operations` operations; in training, of 1 … `operations`.

    Tokens are the values, then the operations, ⟨n⟩ and ⟨=⟩ of each n, and ⟨start⟩, each of these with a synonym.

    operations: L, the greatest number of operations (published: 10, 13, 16).
    synonyms: use both forms of the tokens at random; False uses the first.
    """

    operations: int = static(10, at_least=1)
    modulus: int = static(23, at_least=2, at_most=2**15)
    synonyms: bool = static(True)

    @property
    def vocabulary(self) -> int:
        return self.modulus + 2 * (OPERATIONS + 2 * self.operations + 1)

    @property
    def sequence_length(self) -> int:
        return 2 * self.operations + 4

    @property
    def chance(self) -> float:
        """A random value; 0 is somewhat more frequent than others, since products are 0 more often."""
        return 1 / self.modulus

    def example(self, key: Array) -> Batch:
        return self.sample(key, jnp.int32(self.operations), answer_alone=True)

    def training_example(self, key: Array) -> Batch:
        for_count, key = jax.random.split(key)
        count = jax.random.randint(for_count, (), 1, self.operations + 1)
        return self.sample(key, count, answer_alone=False)

    def sample(self, key: Array, count: Int[Array, ""], *, answer_alone: bool) -> Batch:
        for_expression, for_synonyms = jax.random.split(key)
        form = jax.random.bernoulli(for_synonyms, 0.5, (self.sequence_length + 1,)) & self.synonyms
        kinds = self.expression(for_expression, count)
        result, end = self.evaluate(kinds, count), 2 * count + 3
        lengths = self.modulus + 2 * OPERATIONS
        tokens = jnp.zeros(self.sequence_length + 1, jnp.int32).at[2:-2].set(kinds)
        is_operation = tokens >= self.modulus
        tokens = jnp.where(is_operation, 2 * tokens - self.modulus + form, tokens)
        tokens = tokens.at[0].set(self.vocabulary - 2 + form[0]).at[1].set(lengths + 4 * (count - 1) + form[1])
        tokens = tokens.at[end].set(lengths + 4 * (count - 1) + 2 + form[-1]).at[end + 1].set(result)
        place = jnp.arange(tokens.size)
        batch = next_token(tokens, place == end + 1 if answer_alone else place <= end + 1)
        return batch.replace(valid=place[:-1] <= end, padding_is_behind=True)

    def expression(self, key: Array, count: Int[Array, ""]) -> Int[Array, "T"]:
        """Return values and, from `modulus` on, operations of an expression in prefix notation, then zeros."""

        def next_node(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
            sizes, top = state  # a stack of the numbers of operations of the expressions to come
            size = sizes[top]
            for_value, for_operation, for_left = jax.random.split(key, 3)
            left = jax.random.randint(for_left, (), 0, jnp.maximum(size, 1))
            operation = self.modulus + jax.random.randint(for_operation, (), 0, OPERATIONS)
            value = jax.random.randint(for_value, (), 0, self.modulus)
            sizes = jnp.where(size > 0, sizes.at[top].set(size - 1 - left).at[top + 1].set(left), sizes)
            kind = jnp.where(top < 0, 0, jnp.where(size > 0, operation, value))
            return (sizes, jnp.where(size > 0, top + 1, top - 1)), kind

        stack = jnp.zeros(self.operations + 2, jnp.int32).at[0].set(count)
        keys = jax.random.split(key, 2 * self.operations + 1)
        return jax.lax.scan(next_node, (stack, jnp.int32(0)), keys)[1]

    def evaluate(self, kinds: Int[Array, "T"], count: Int[Array, ""]) -> Int[Array, ""]:
        """Return the value of an expression, read from its end."""

        def previous_node(state: tuple[Array, Array], node: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            values, top = state  # a stack of the values of the expressions behind
            kind, place = node
            a, b = values[top], values[top - 1]
            results = jnp.stack([a + b, a - b, a * b]) % self.modulus
            is_operation = kind >= self.modulus
            top_after = jnp.where(is_operation, top - 1, top + 1)
            value = jnp.where(is_operation, results[kind - self.modulus], kind)
            is_there = place <= 2 * count
            return (
                jnp.where(is_there, values.at[top_after].set(value), values),
                jnp.where(is_there, top_after, top),
            ), None

        nodes = (kinds, jnp.arange(kinds.size))
        stack = jnp.zeros(self.operations + 2, jnp.int32)
        return jax.lax.scan(previous_node, (stack, jnp.int32(-1)), nodes, reverse=True)[0][0][0]


VARIANTS: Mapping[str, Mapping[str, object]] = {
    f"Mano of {operations} operations": {"task": Mano(operations=operations)} for operations in (10, 13, 16)
}
