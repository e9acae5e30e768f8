"""Selective copying: the symbols among blanks are written, in order, after a signal.

    blanks t₁ blanks t₂ … blanks t_n ⟨copy⟩ blanks, and at the n last places t₁ t₂ … t_n are asked for

Family: tasks
Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv:2403.17844 (MAD);
github.com/athms/mad-lab at 0f49a45, generate_copying_instance. Gu and Dao 2023 (Mamba) have the task with scattered
blanks too, and Arjovsky et al. 2016 that with the blanks behind all symbols. New examples in every step; the authors of
MAD draw 12,800 once.
Claim: with scattered blanks, mixers that do not depend on the input fail; with blanks behind, a delay is enough.
Cost: none.
Verified: counts of places of the published generator; a loop in Python reaches the ceiling.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, SyntheticTask, static


class SelectiveCopying(SyntheticTask):
    """Predict the symbols of a sequence in order at its end, where the inputs are blanks.

    symbols: size of the vocabulary, with the blank and the signal as the last two.
    length: number of tokens.
    copied: number of tokens to copy.
    scattered: blanks stand at random before the symbols, independently of each other; False puts all behind them.
    """

    targets_in_inputs: ClassVar[bool] = False

    symbols: int = static(16, at_least=3)
    length: int = static(256, at_least=3)
    copied: int = static(16, at_least=1)
    scattered: bool = static(True)

    def problems(self) -> Iterator[str]:
        if self.length < 2 * self.copied + 1:
            yield f"length is {self.length}; expected at least 2 copied + 1 = {2 * self.copied + 1}"

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - 2)

    def example(self, key: Array) -> Batch:
        for_symbols, for_blanks = jax.random.split(key)
        symbols = jax.random.randint(for_symbols, (self.copied,), 0, self.symbols - 2)
        places, behind = jnp.arange(self.copied), self.length - self.copied
        if self.scattered:
            before = jax.random.randint(for_blanks, (behind - self.copied - 1,), 0, self.copied)
            places = places + (before[None] <= places[:, None]).sum(axis=1)
        tokens = jnp.full(self.length, self.symbols - 2).at[places].set(symbols).at[behind - 1].set(self.symbols - 1)
        is_asked = jnp.arange(self.length) >= behind
        targets = jnp.zeros_like(tokens).at[behind:].set(symbols)
        return Batch(inputs=tokens, targets=targets, weights=is_asked.astype(jnp.float32))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "selective copying": {"task": SelectiveCopying()},
    "delayed copying": {"task": SelectiveCopying(scattered=False)},
}
