"""In-context recall: keys with values that are fixed within an example recur, also with noise between them.

    k₁ v₁ k₂ v₂ …, where v is a function of k that is drawn anew in every example

Family: tasks
Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv:2403.17844 (MAD);
github.com/athms/mad-lab at 0f49a45, generate_in_context_recall_instance with multi_query. New examples in every step;
the authors draw 12,800 once.
Claim: the scores of architectures on MAD's tasks correlate with their perplexities at compute-optimal sizes.
Cost: none; all tokens are scored in training, values of keys that were there before in evaluation.
Verified: counts of pairs, noise and scored tokens of the published generator; a loop in Python reaches the ceiling.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, SyntheticTask, next_token, static


class InContextRecall(SyntheticTask):
    """Predict the value of every key that was there before; the last key is one of them.

    symbols: size of the vocabulary: keys, as many values (or one more), then noise.
    length: number of tokens.
    noise: tokens of noise among the symbols; a pair of noise may stand in place of a key and its value.
    rate: share of the pairs that are noise; at least one is not.
    """

    symbols: int = static(16, at_least=2)
    length: int = static(128, at_least=4)
    noise: int = static(0, at_least=0)
    rate: float = static(0.0, at_least=0, below=1)

    def problems(self) -> Iterator[str]:
        if self.length % 2:
            yield f"length is {self.length}; expected an even number"
        if self.symbols - self.noise < 2:
            yield f"noise is {self.noise}; expected at most symbols − 2 = {self.symbols - 2}"
        if self.rate and not self.noise:
            yield f"rate is {self.rate}; expected 0 without tokens of noise"

    @property
    def keys(self) -> int:
        """Number of keys; the values follow them."""
        return (self.symbols - self.noise) // 2

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length - 1

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - self.noise - self.keys)

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_noise, for_rate, for_kept, for_last = jax.random.split(key, 6)
        pairs, values_end = self.length // 2 - 1, self.symbols - self.noise
        keys = jax.random.randint(for_keys, (pairs,), 0, self.keys)
        value_of = jax.random.randint(for_values, (self.keys,), self.keys, values_end)
        # as published, one of the places with the last pair's is never noise: for that one, any may be
        kept, any_kept = jax.random.randint(for_kept, (2,), 0, jnp.array([pairs + 1, pairs]))
        is_noise = (jax.random.uniform(for_rate, (pairs,)) < self.rate) & (jnp.arange(pairs) != kept)
        is_noise = is_noise & ~(is_noise.all() & (jnp.arange(pairs) == any_kept))
        shown = jnp.zeros(self.keys, bool).at[keys].max(~is_noise)
        keys = jnp.append(keys, jax.random.categorical(for_last, jnp.where(shown, 0, -jnp.inf)))
        is_noise = jnp.append(is_noise, False)
        noise = jax.random.randint(for_noise, (pairs + 1, 2), values_end, max(self.symbols, values_end + 1))
        tokens = jnp.where(is_noise[:, None], noise, jnp.stack([keys, value_of[keys]], axis=1))
        is_earlier = jnp.tril(keys[:, None] == keys[None], k=-1) & ~is_noise[None]
        scored = is_earlier.any(axis=1) & ~is_noise
        return next_token(tokens.reshape(-1), jnp.stack([jnp.zeros_like(scored), scored], axis=1).reshape(-1))

    def training_example(self, key: Array) -> Batch:
        batch = self.example(key)
        return batch.replace(weights=jnp.ones_like(batch.weights))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "in-context recall": {"task": InContextRecall()},
    "noisy in-context recall": {"task": InContextRecall(symbols=32, noise=16, rate=0.2)},
}
