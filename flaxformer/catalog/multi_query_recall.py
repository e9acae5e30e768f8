"""Multi-query recall (MQAR): the value of each of several keys is asked for, after gaps that follow a power law.

    k₁ v₁ … k_n v_n, then each key once more, at the place 2 g_i of the remainder, where v_i is asked for;
    the g_i are distinct, P(g) ∝ (g + 1)^(a − 1) among those left

Family: tasks
Source: Arora et al. 2023, "Zoology: Measuring and improving recall in efficient language models", arXiv:2312.04927;
github.com/HazyResearch/zoology at d88d6f5, multiquery_ar and iclr24_zoology_figure2, whose first settings (length 64,
4 pairs) are the defaults. New examples in every step; the authors draw 100,000 once.
Claim: attention solves it at a constant width; gated convolutions need a width that grows with the length.
Cost: none.
Verified: counts of gaps, keys and values of the published generator; a loop in Python reaches the ceiling.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, SyntheticTask, draw_distinct, static


class MultiQueryRecall(SyntheticTask):
    """Predict the value of each key where the key stands a second time; the answers are not shown.

    Token 0 is a blank, keys are below half of the symbols, values are from there on; all are distinct in an example.

    symbols: size of the vocabulary.
    length: number of tokens.
    pairs: number of keys with a value.
    power: a of the law of gaps; 1 for uniform gaps.
    random_blanks: random tokens, of all symbols, in place of the blanks.
    """

    symbols: int = static(8192, at_least=4)
    length: int = static(64, at_least=4)
    pairs: int = static(4, at_least=1)
    power: float = static(0.01, above=0)
    random_blanks: bool = static(False)

    def problems(self) -> Iterator[str]:
        if self.length % 2 or self.length < 4 * self.pairs:
            yield f"length is {self.length}; expected an even number of at least 4 pairs = {4 * self.pairs}"
        if self.pairs > self.symbols // 2 - 1:
            yield f"pairs is {self.pairs}; expected at most the number of keys, {self.symbols // 2 - 1}"

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        """A random value; a random value of the example is right in 1 / pairs of the cases."""
        return 1 / (self.symbols - self.symbols // 2)

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_gaps, for_blanks = jax.random.split(key, 4)
        half = self.symbols // 2
        keys = 1 + draw_distinct(for_keys, jnp.zeros(half - 1), self.pairs)
        values = half + draw_distinct(for_values, jnp.zeros(self.symbols - half), self.pairs)
        gap = jnp.arange(1, self.length // 2 - self.pairs + 1)
        places = 2 * (self.pairs + draw_distinct(for_gaps, (self.power - 1) * jnp.log(gap), self.pairs))
        shown = jnp.stack([keys, values], axis=1).reshape(-1)
        tokens = jnp.zeros(self.length, jnp.int32).at[: 2 * self.pairs].set(shown).at[places].set(keys)
        if self.random_blanks:
            tokens = jnp.where(tokens == 0, jax.random.randint(for_blanks, tokens.shape, 0, self.symbols), tokens)
        targets, weights = jnp.zeros_like(tokens).at[places].set(values), jnp.zeros(self.length).at[places].set(1)
        return Batch(inputs=tokens, targets=targets, weights=weights)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    f"{task.pairs} pairs in {task.length} tokens": {"task": task, "model.vocabulary": task.vocabulary}
    for task in (MultiQueryRecall(length=n, pairs=pairs) for n, pairs in ((64, 4), (128, 8), (256, 16), (512, 64)))
}
