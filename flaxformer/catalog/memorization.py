"""Memorization: the values of keys by a table that is the same in every example, and so must be in the weights.

    k₁ ⟨?⟩ k₂ ⟨?⟩ …, with the value of k_i asked for at the ⟨?⟩ behind it

Family: tasks
Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv:2403.17844 (MAD);
github.com/athms/mad-lab at 0f49a45, generate_memorization_instance. New examples in every step; the authors draw 256.
Claim: the scores of architectures on MAD's tasks correlate with their perplexities at compute-optimal sizes.
Cost: none.
Verified: counts of keys and values of the published generator; a table that a loop in Python reads off the examples.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, SyntheticTask, static


class Memorization(SyntheticTask):
    """Predict the value of the key before; keys have different values.

    symbols: size of the vocabulary: keys, as many values (or one more), and the question mark.
    table: number of the random table of values.
    """

    targets_in_inputs: ClassVar[bool] = False

    symbols: int = static(256, at_least=3)
    length: int = static(32, at_least=2)
    table: int = static(0, at_least=0, below=2**31)

    def problems(self) -> Iterator[str]:
        if self.length % 2:
            yield f"length is {self.length}; expected an even number"

    @property
    def keys(self) -> int:
        """Number of keys; the values follow them."""
        return (self.symbols - 1) // 2

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - 1 - self.keys)

    def example(self, key: Array) -> Batch:
        value_of = jax.random.permutation(jax.random.key(self.table), jnp.arange(self.keys, self.symbols - 1))
        keys = jax.random.randint(key, (self.length // 2,), 0, self.keys)
        asked = jnp.full_like(keys, self.symbols - 1)
        tokens = jnp.stack([keys, asked], axis=1).reshape(-1)
        targets = jnp.stack([keys, value_of[keys]], axis=1).reshape(-1)
        return Batch(inputs=tokens, targets=targets, weights=(tokens == self.symbols - 1).astype(jnp.float32))


VARIANTS: Mapping[str, Mapping[str, object]] = {"memorization": {"task": Memorization()}}
