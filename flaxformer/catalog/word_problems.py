"""Word problems: the product of the elements of a group that were read so far.

    y_t = g₁ g₂ … g_t: permutations of five points, or numbers with addition modulo m; m = 2 is parity

Family: tasks
Source: Merrill, Petty and Sabharwal 2024, "The Illusion of State in State-Space Models", arXiv:2404.08819, with
github.com/jopetty/word-problem at 8f910f9 (S5, A5); Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy",
arXiv:2207.02098, with github.com/google-deepmind/neural_networks_chomsky_hierarchy at 2b8eb4b (parity check and cycle
navigation, lengths of 1 to 40 in training). Merrill et al. draw a set of sequences once.
Claim: Transformers, S4 and Mamba of a fixed depth cannot express S5 (if TC⁰ ≠ NC¹), and struggle to learn it; recurrent
networks learn S5, parity and cycle navigation, also at lengths above those of training.
Cost: none.
Verified: counts of the published generators; a loop over tokens in Python reaches the ceiling.
"""

import itertools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer import Batch, SyntheticTask, static


class PermutationComposition(SyntheticTask):
    """Predict, at every token, the composition of the permutations so far: first the first, then the second, ….

    Token i is the permutation i in lexicographic order.

    points: number of points; 5 is the smallest for which the group is not solvable.
    even: even permutations alone, which are the alternating group.
    """

    targets_in_inputs: ClassVar[bool] = False

    points: int = static(5, at_least=2, at_most=6)
    even: bool = static(False)
    length: int = static(16, at_least=1)

    @property
    def elements(self) -> list[tuple[int, ...]]:
        """Permutations as tuples of the images of 0, 1, …, in the order of their tokens."""
        every = itertools.permutations(range(self.points))
        return [p for p in every if not self.even or sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0]

    @property
    def vocabulary(self) -> int:
        return len(self.elements)

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        return 1 / self.vocabulary

    def example(self, key: Array) -> Batch:
        elements = jnp.array(self.elements, jnp.int32)
        digits = self.points ** jnp.arange(self.points)
        token_of = jnp.zeros(self.points**self.points, jnp.int32).at[elements @ digits].set(jnp.arange(len(elements)))
        tokens = jax.random.randint(key, (self.length,), 0, len(elements))
        products = jax.lax.associative_scan(compose, elements[tokens])
        return Batch(inputs=tokens, targets=token_of[products @ digits], weights=jnp.ones(self.length))


def compose(first: Int[Array, "*batch n"], second: Int[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """Return the permutation that applies the first, then the second."""
    return jnp.take_along_axis(second, first, axis=-1)


class ModularCounting(SyntheticTask):
    """Predict the sum of steps modulo m: at the end, or at every token. Token i stands for the step steps[i].

    In training, a sequence has 1 … length tokens; in evaluation, `length`.

    steps: numbers to add; (−1, 0, 1) with a modulus of 5 is cycle navigation.
    everywhere: ask for the sum at every token.
    """

    targets_in_inputs: ClassVar[bool] = False

    modulus: int = static(2, at_least=2)
    steps: tuple[int, ...] = static((0, 1))
    length: int = static(40, at_least=1)
    everywhere: bool = static(False)

    @property
    def vocabulary(self) -> int:
        return max(self.modulus, len(self.steps))

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def example(self, key: Array) -> Batch:
        return self.sample(key, jnp.int32(self.length))

    def training_example(self, key: Array) -> Batch:
        for_length, key = jax.random.split(key)
        return self.sample(key, jax.random.randint(for_length, (), 1, self.length + 1))

    def sample(self, key: Array, length: Int[Array, ""]) -> Batch:
        tokens = jax.random.randint(key, (self.length,), 0, len(self.steps))
        sums = jnp.cumsum(jnp.array(self.steps, jnp.int32)[tokens]) % self.modulus
        place = jnp.arange(self.length)
        weights = (place < length if self.everywhere else place == length - 1).astype(jnp.float32)
        return Batch(inputs=tokens, targets=sums, weights=weights, valid=place < length, padding_is_behind=True)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "S5": {"task": PermutationComposition()},
    "A5": {"task": PermutationComposition(even=True)},
    "parity": {"task": ModularCounting()},
    "cycle navigation": {"task": ModularCounting(modulus=5, steps=(-1, 0, 1))},
}
