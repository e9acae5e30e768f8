"""Needle retrieval: a number that was said once in a long text is asked for by its key.

    sentence … ⟨is⟩ key digits … sentence ⟨asked⟩ key ⟨answer⟩ digits

Family: tasks
Source: Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?",
arXiv:2404.06654; github.com/NVIDIA/RULER at c3f5e3b, niah.py with the haystacks "noise" and "needle". Its words are
tokens here, and keys of an example are distinct. Its haystack of essays is not here.
Claim: nearly all models find a needle in noise, and lose accuracy on harder tasks as lengths grow.
Cost: none.
Verified: counts of places and digits of the published generator; a search in Python reaches the ceiling.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer import Batch, SyntheticTask, draw_distinct, join_pieces, next_token, static

HAYSTACKS = ("noise", "needles")


class NeedleRetrieval(SyntheticTask):
    """Predict the digits of the number of a key; `needles` keys and numbers stand before different sentences.

    keys: size of the vocabulary of keys.
    sentences: sentences of the haystack.
    words: tokens of a sentence of noise, which are the same in all sentences.
    haystack: "noise", or "needles" with other keys and their numbers in place of sentences.
    """

    keys: int = static(256, at_least=1)
    needles: int = static(1, at_least=1)
    digits: int = static(7, at_least=1)
    sentences: int = static(32, at_least=1)
    words: int = static(8, at_least=1)
    haystack: str = static("noise", choices=HAYSTACKS)

    def problems(self) -> Iterator[str]:
        if self.needles > self.sentences:
            yield f"needles is {self.needles}; expected at most the number of sentences, {self.sentences}"
        if self.keys < self.statements:
            yield f"keys is {self.keys}; expected at least {self.statements}, one for each needle and other number"

    @property
    def statements(self) -> int:
        """Number of keys in an example."""
        return self.needles + self.sentences * (self.haystack == "needles")

    @property
    def vocabulary(self) -> int:
        """Digits, ⟨is⟩, ⟨asked⟩, ⟨answer⟩, keys, words of noise."""
        return 13 + self.keys + (self.words if self.haystack == "noise" else 0)

    @property
    def sequence_length(self) -> int:
        said = 2 + self.digits
        sentence = self.words if self.haystack == "noise" else said
        return self.needles * said + self.sentences * sentence + 3 + self.digits - 1

    @property
    def chance(self) -> float:
        """The first digit is not 0."""
        return (1 / 9 + (self.digits - 1) / 10) / self.digits

    def example(self, key: Array) -> Batch:
        for_keys, for_digits, for_places = jax.random.split(key, 3)
        keys = 13 + draw_distinct(for_keys, jnp.zeros(self.keys), self.statements)
        least = (jnp.arange(self.digits) == 0).astype(jnp.int32)[None]
        digits = jax.random.randint(for_digits, (self.statements, self.digits), least, 10)
        said = jnp.concatenate([jnp.full((self.statements, 1), 10), keys[:, None], digits], axis=1)
        noise = jnp.tile(13 + self.keys + jnp.arange(self.words), (self.sentences, 1))
        hay = noise if self.haystack == "noise" else said[self.needles :]
        places = draw_distinct(for_places, jnp.zeros(self.sentences), self.needles)
        text = self.insert(hay, said[: self.needles], places)
        question = jnp.stack([jnp.int32(11), keys[0], jnp.int32(12)])
        tokens = jnp.concatenate([text, question, digits[0]])
        return next_token(tokens, jnp.arange(tokens.size) >= tokens.size - self.digits)

    def insert(self, hay: Int[Array, "s w"], said: Int[Array, "n d"], places: Int[Array, "n"]) -> Int[Array, "T"]:
        """Return the text with each needle before the sentence of its place."""
        width = max(hay.shape[1], said.shape[1])
        padded = jnp.zeros((self.sentences, width), jnp.int32).at[places, : said.shape[1]].set(said)
        lengths = jnp.zeros(self.sentences, jnp.int32).at[places].set(said.shape[1])
        pieces = jnp.stack([padded, jnp.pad(hay, ((0, 0), (0, width - hay.shape[1])))], axis=1)
        both = jnp.stack([lengths, jnp.full_like(lengths, hay.shape[1])], axis=1)
        return join_pieces(pieces.reshape(-1, width), both.reshape(-1), hay.size + said.size)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    name: {"task": task, "model.vocabulary": task.vocabulary}
    for name, task in {
        "needle in noise": NeedleRetrieval(),
        "needle among needles": NeedleRetrieval(haystack="needles"),
    }.items()
}
