"""Synthetic sequence to sequence tasks: copy, reverse or sort random symbols."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer.core.struct import static
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.synthetic import SyntheticTask, next_token

FORMS = ("joined", "paired")
"""Ways to read a source and its target: as one sequence of a decoder, or with an encoder and a decoder."""


class SequenceToSequence(SyntheticTask):
    """Base: read `length` random symbols and predict as many symbols, which are scored.

    form: "joined" has one sequence source, separator, target for a decoder, with the source and the separator as its
      prefix; "paired" has the source for an encoder, and a decoder that starts from the separator (teacher forcing).
    """

    is_abstract: ClassVar[bool] = True

    symbols: int = static(16, at_least=2)
    length: int = static(8, at_least=1)
    form: str = static("joined", choices=FORMS)

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        """Return the target of a source."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        return self.symbols + 1

    @property
    def sequence_length(self) -> int:
        return self.length if self.form == "paired" else 2 * self.length

    @property
    def source_length(self) -> int:
        return self.length if self.form == "paired" else 0

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def example(self, key: Array) -> Batch:
        source = jax.random.randint(key, (self.length,), 0, self.symbols)
        separator = jnp.array([self.symbols])
        prompt = separator if self.form == "paired" else jnp.concatenate([source, separator])
        tokens = jnp.concatenate([prompt, self.answer(source)])
        batch = next_token(tokens, jnp.arange(tokens.size) >= prompt.size)
        return batch.replace(prefix=jnp.int32(prompt.size), source=source if self.form == "paired" else None)


class Copy(SequenceToSequence):
    """Predict the symbols of the source in the same order."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return source


class Reverse(SequenceToSequence):
    """Predict the symbols of the source in reverse order."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return source[::-1]


class Sort(SequenceToSequence):
    """Predict the symbols of the source in ascending order."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return jnp.sort(source)
