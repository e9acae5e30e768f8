"""Fuzzy in-context recall: keys and values are motifs of one to three tokens.

    k₁ v₁ k₂ v₂ …, where k and v are sequences of distinct tokens, and v is a function of k within an example

Family: tasks
Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv:2403.17844 (MAD);
github.com/athms/mad-lab at 0f49a45, generate_fuzzy_in_context_recall_instance with multi_query. New examples in every
step; the authors draw 12,800 once.
Claim: the scores of architectures on MAD's tasks correlate with their perplexities at compute-optimal sizes.
Cost: none; all tokens are scored in training, values of keys that were there before and the last value in evaluation.
Verified: counts of motifs and scored tokens of the published generator; a loop in Python reaches the ceiling.
"""

import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer import Batch, SyntheticTask, draw_distinct, join_pieces, next_token, static

CEILING_EXAMPLES = 1024


class FuzzyRecall(SyntheticTask):
    """Predict the values of keys that were there before, and that of the last key; padding stands before all pairs.

    In evaluation, keys have `motif` tokens; in training, 1 … motif. As published, the pair of the last key is put at a
    drawn place, which may be behind the end of the others: then nothing determines the last value.

    symbols: size of the vocabulary: keys, values and the token of padding.
    motif: greatest number of tokens of a key and of a value.
    """

    symbols: int = static(16, at_least=5)
    length: int = static(128, at_least=5)
    motif: int = static(3, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.motif > self.keys:
            yield f"motif is {self.motif}; expected at most the number of tokens of keys, {self.keys}"
        if self.length < 4 * self.motif + 1:
            yield f"length is {self.length}; expected at least 4 motif + 1 = {4 * self.motif + 1}"
        if (self.keys + 1) ** self.motif >= 2**31:
            yield f"motif is {self.motif}; expected fewer than 2³¹ keys of symbols"

    @property
    def keys(self) -> int:
        """Number of tokens of keys; those of values follow."""
        return (self.symbols - 1) // 2

    @property
    def values(self) -> int:
        return self.symbols - 1 - self.keys

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def ceiling(self) -> float:
        """Share of the scored tokens that the inputs determine, and of right guesses of the others.

        It is estimated from 1,024 examples, the same for every call.
        """
        return ceiling_of(self.replace(batch_size=1, evaluation_batches=1, evaluation_batch_size=None))

    @property
    def chance(self) -> float:
        return 1 / self.values

    @property
    def evaluated_sizes(self) -> Array:
        """Weights of the sizes of keys in evaluation: the greatest alone."""
        return 1.0 * (jnp.arange(self.motif) == self.motif - 1)

    def example(self, key: Array) -> Batch:
        return self.sample(key, self.evaluated_sizes)[0]

    def training_example(self, key: Array) -> Batch:
        batch = self.sample(key, jnp.ones(self.motif))[0]
        return batch.replace(weights=jnp.ones_like(batch.weights))

    def draw_key(self, key: Array, sizes: Array) -> tuple[Int[Array, "motif"], Int[Array, ""], Int[Array, ""]]:
        """Return a random key: tokens, of which the first are used, their number, and a number per key."""
        for_size, for_tokens = jax.random.split(key)
        size = 1 + jax.random.categorical(for_size, jnp.log(sizes))
        tokens = draw_distinct(for_tokens, jnp.zeros(self.keys), self.motif)
        digits = jnp.where(jnp.arange(self.motif) < size, tokens + 1, 0)
        return tokens, size, jnp.sum(digits * (self.keys + 1) ** jnp.arange(self.motif))

    def value_of(self, key: Array, number: Int[Array, ""]) -> tuple[Int[Array, "motif"], Int[Array, ""]]:
        """Return the value of a key by its number, a function that is drawn by a random key."""
        for_size, for_tokens = jax.random.split(jax.random.fold_in(key, number))
        tokens = self.keys + draw_distinct(for_tokens, jnp.zeros(self.values), self.motif)
        return tokens, jax.random.randint(for_size, (), 1, self.motif + 1)

    def sample(self, key: Array, sizes: Array) -> tuple[Batch, Bool[Array, ""]]:
        """Return an example whose keys have sizes of these weights, and True if the last key was there before."""
        for_last, for_values, for_place, for_keys = jax.random.split(key, 4)
        tokens, size, number = jax.vmap(self.draw_key, (0, None))(jax.random.split(for_keys, self.length // 2), sizes)
        last = self.draw_key(for_last, sizes)
        last += self.value_of(for_values, last[2])
        drawn = (tokens, size, number, *jax.vmap(self.value_of, (None, 0))(for_values, number))
        both = last[1] + last[4]
        place = jax.random.randint(for_place, (), 0, self.length - 2 * both)

        def next_pair(state: tuple[Array, Array], pair: tuple[Array, Array, Array]) -> tuple[tuple, tuple]:
            total, is_there = state
            size, is_last_key, value_size = pair
            is_used, is_put = total < self.length - both - 2 * self.motif, ~is_there & (total >= place)
            total = total + is_used * jnp.where(is_put, both, size + value_size)
            return (total, is_there | (is_used & (is_put | is_last_key))), (is_used, is_put)

        (total, is_there), (is_used, is_put) = jax.lax.scan(
            next_pair, (jnp.int32(0), jnp.bool_(False)), (size, number == last[2], drawn[4])
        )
        tokens, size, number, value, value_size = (
            jnp.append(
                jnp.where(is_put.reshape(-1, *[1] * jnp.ndim(a)), jnp.asarray(a)[None], b), jnp.asarray(a)[None], axis=0
            )
            for a, b in zip(last, drawn, strict=True)
        )
        is_used = jnp.append(is_used, True)
        size, value_size = size * is_used, value_size * is_used
        is_earlier = jnp.tril(number[:, None] == number[None], k=-1) & (size > 0)[None]
        scored = is_earlier.any(axis=1).at[-1].set(True)
        pieces = jnp.stack([tokens, value], axis=1).reshape(-1, self.motif)
        lengths = jnp.stack([size, value_size], axis=1).reshape(-1)
        is_scored = jnp.stack([jnp.zeros_like(scored), scored], axis=1).reshape(-1, 1) & jnp.ones((1, self.motif), bool)
        padding = self.length + 1 - total - both
        text = jnp.roll(join_pieces(pieces, lengths, self.length + 1, self.symbols - 1), padding)
        return next_token(text, jnp.roll(join_pieces(is_scored, lengths, self.length + 1), padding)), is_there


@functools.cache
def ceiling_of(task: FuzzyRecall) -> float:
    """Return the share of scored tokens that a solver gets right, which guesses the last value if it was not there."""

    def counts(key: Array) -> tuple[Array, Array]:
        batch, is_known = task.sample(key, task.evaluated_sizes)
        place = jnp.arange(batch.inputs.size)
        last = jnp.max(jnp.where(batch.inputs < task.keys, place, -1))  # the last token of the last key
        guess = 1 / (task.values - jnp.maximum(place - last, 0))
        right = jnp.where((place >= last) & ~is_known, guess, 1)
        return (batch.weights * right).sum(), batch.weights.sum()

    right, scored = jax.jit(jax.vmap(counts))(jax.random.split(jax.random.key(0), CEILING_EXAMPLES))
    return float(right.sum() / scored.sum())


VARIANTS: Mapping[str, Mapping[str, object]] = {"fuzzy in-context recall": {"task": FuzzyRecall()}}
