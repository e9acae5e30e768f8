"""A sequence in, a sequence out: random symbols to be said again in another order."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer.struct import static
from flaxformer.tasks.base import Batch
from flaxformer.tasks.synthetic import SyntheticTask, next_token

FORMS = ("joined", "paired")
"""Form in which a model reads a source and its target: one sequence of a decoder, or each in a stack of its own."""


class SequenceToSequence(SyntheticTask):
    """Read `length` random symbols and answer with as many; the answer is scored.

    form: "joined", one sequence, source, separator, target, for a decoder; the source and the separator are its
    prefix. "paired", the source for an encoder; the decoder starts from the separator (teacher forcing).
    """

    is_abstract: ClassVar[bool] = True

    symbols: int = static(16, at_least=2)
    length: int = static(8, at_least=1)
    form: str = static("joined", choices=FORMS)

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        """The target of a source."""
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

    def example(self, key: Array) -> Batch:
        source = jax.random.randint(key, (self.length,), 0, self.symbols)
        separator = jnp.array([self.symbols])
        prompt = separator if self.form == "paired" else jnp.concatenate([source, separator])
        tokens = jnp.concatenate([prompt, self.answer(source)])
        batch = next_token(tokens, jnp.arange(tokens.size) >= prompt.size)
        return batch.replace(prefix=jnp.int32(prompt.size), source=source if self.form == "paired" else None)


class Copy(SequenceToSequence):
    """Say the symbols again."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return source


class Reverse(SequenceToSequence):
    """Say the symbols from the last to the first."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return source[::-1]


class Sort(SequenceToSequence):
    """Say the symbols in ascending order."""

    def answer(self, source: Int[Array, "length"]) -> Int[Array, "length"]:
        return jnp.sort(source)
