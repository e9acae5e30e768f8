"""Depo: k steps along a cycle of words whose edges are listed in random order, without intermediate steps.

    ⟨start⟩ a → b for every edge (a, b) of a random cycle, then up to ten times ⟨k⟩ a ⟨is⟩ and the k-th word after a

Family: tasks
Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
arXiv:2512.17351; github.com/facebookresearch/PhysicsLM4 at 7580696, depo.py, whose settings are the variants.
Claim: Canon layers deepen the reasoning of Transformers 2 to 4 times; linear models reason less deep, also with them.
Cost: none; training has 3 to `nodes` words and all steps, evaluation `nodes` words and steps that are powers of 2.
Verified: counts of words, lengths and steps of the published generator; a walk in Python reaches the ceiling.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer import Batch, SyntheticTask, draw_distinct, join_pieces, next_token, static

MOST_WORDS = 100_000


class WordTask(SyntheticTask):
    """Base of tasks on a graph whose nodes are words: tokens 0 … letters − 1, then letters … 2 letters − 1 as the last.

    A word has a length that is uniform in shortest … longest, and random tokens; words of an example are distinct.

    nodes: N, the greatest number of nodes; training has n = 3 … N, with a probability proportional to 1 / (n + √N).
    """

    is_abstract: ClassVar[bool] = True

    nodes: int = static(at_least=3)
    letters: int = static(at_least=1)
    shortest: int = static(1, at_least=1)
    longest: int = static(1, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.longest < self.shortest:
            yield f"longest is {self.longest}; expected at least shortest, {self.shortest}"
        elif not self.nodes <= self.words <= MOST_WORDS:
            yield f"nodes is {self.nodes}; expected at most {self.words}, the number of words, up to {MOST_WORDS}"

    @property
    def words(self) -> int:
        """Number of words that there are."""
        return sum(self.letters**length for length in range(self.shortest, self.longest + 1))

    @property
    def chance(self) -> float:
        """A random letter: whether it is the last of a word is taken as known."""
        return 1 / self.letters

    def count_nodes(self, key: Array) -> Int[Array, ""]:
        """Return a random number of nodes, as in training."""
        return 3 + jax.random.categorical(key, -jnp.log(jnp.arange(3, self.nodes + 1) + math.sqrt(self.nodes)))

    def draw_words(self, key: Array, count: Int[Array, ""]) -> tuple[Int[Array, "nodes longest"], Int[Array, "nodes"]]:
        """Return `count` distinct words in random order, then other words, and their lengths."""
        for_words, for_order = jax.random.split(key)
        lengths = range(self.shortest, self.longest + 1)
        words = [w for n in lengths for w in itertools.product(range(self.letters), repeat=n)]
        table = jnp.array([(*w[:-1], w[-1] + self.letters, *[0] * (self.longest - len(w))) for w in words], jnp.int32)
        sizes = jnp.array([len(word) for word in words], jnp.int32)
        chosen = draw_distinct(for_words, -sizes * math.log(self.letters), self.nodes)[
            permute_first(for_order, self.nodes, count)
        ]
        return table[chosen], sizes[chosen]

    def join(
        self, pieces: Int[Array, "pieces width"], sizes: Int[Array, "pieces"], is_scored: Bool[Array, "pieces"]
    ) -> Batch:
        """Return the example of pieces one after another, of which some are scored, with padding behind."""
        length = self.sequence_length
        scored = join_pieces(jnp.broadcast_to(is_scored[:, None], pieces.shape), sizes, length + 1)
        batch = next_token(join_pieces(pieces, sizes, length + 1), scored)
        return batch.replace(valid=jnp.arange(length) < sizes.sum(), padding_is_behind=True)


def permute_first(key: Array, size: int, count: Int[Array, ""]) -> Int[Array, "size"]:
    """Return 0 … count − 1 in random order, then the numbers up to size − 1."""
    place = jnp.arange(size)
    return jnp.argsort(jnp.where(place < count, jax.random.uniform(key, (size,)), 1.0 + place))


class Depo(WordTask):
    """Predict the words that are `steps` after another on a cycle.

    steps: K, the greatest number of steps (published: 8 and 16).
    questions: number of questions, on different words; with fewer words, one for each.
    """

    nodes: int = static(375, at_least=3)
    letters: int = static(50, at_least=1)
    shortest: int = static(1, at_least=1)
    longest: int = static(2, at_least=1)
    steps: int = static(8, at_least=1)
    questions: int = static(10, at_least=1)

    @property
    def vocabulary(self) -> int:
        """Tokens of words, ⟨1⟩ … ⟨K⟩, ⟨is⟩, ⟨start⟩."""
        return 2 * self.letters + self.steps + 2

    @property
    def sequence_length(self) -> int:
        return 2 * self.nodes * self.longest + min(self.questions, self.nodes) * (2 + 2 * self.longest)

    def example(self, key: Array) -> Batch:
        powers = [2**i for i in range(self.steps.bit_length())]
        return self.sample(key, jnp.int32(self.nodes), sorted({*powers, self.steps}), sign_is_scored=False)

    def training_example(self, key: Array) -> Batch:
        for_count, key = jax.random.split(key)
        return self.sample(key, self.count_nodes(for_count), range(1, self.steps + 1), sign_is_scored=True)

    def sample(self, key: Array, count: Int[Array, ""], steps: range | list[int], *, sign_is_scored: bool) -> Batch:
        """Return an example with `count` words and steps of these numbers; ⟨is⟩ may be scored too."""
        for_words, for_edges, for_questions, for_steps = jax.random.split(key, 4)
        words, lengths = self.draw_words(for_words, count)  # a cycle in this order
        edges, width = permute_first(for_edges, self.nodes, count), min(self.questions, self.nodes)
        asked = permute_first(for_questions, self.nodes, count)[:width]
        taken = jnp.array(list(steps), jnp.int32)[jax.random.randint(for_steps, (width,), 0, len(steps))]
        ends = jnp.stack([edges, (edges + 1) % count], axis=1).reshape(-1)
        is_listed = jnp.repeat(jnp.arange(self.nodes) < count, 2)
        answers, is_asked = (asked + taken) % count, jnp.arange(width) < count

        def sign(token: Array | int) -> Int[Array, "width longest"]:
            return jnp.zeros((width, self.longest), jnp.int32).at[:, 0].set(2 * self.letters + token)

        parts = [sign(taken - 1), words[asked], sign(self.steps), words[answers]]
        part_lengths = jnp.stack([jnp.ones_like(asked), lengths[asked], jnp.ones_like(asked), lengths[answers]], axis=1)
        start = jnp.zeros((1, self.longest), jnp.int32).at[0, 0].set(self.vocabulary - 1)
        pieces = jnp.concatenate([start, words[ends], jnp.stack(parts, axis=1).reshape(-1, self.longest)])
        questions = (part_lengths * is_asked[:, None]).reshape(-1)
        sizes = jnp.concatenate([jnp.ones(1, jnp.int32), lengths[ends] * is_listed, questions])
        is_scored = jnp.arange(len(pieces)) >= len(pieces) - 4 * width
        is_scored &= jnp.isin((jnp.arange(len(pieces)) - len(pieces)) % 4, jnp.array([2, 3] if sign_is_scored else [3]))
        return self.join(pieces, sizes, is_scored)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "Depo1": {"task": Depo()},
    "Depo2": {"task": Depo(nodes=125, letters=3, shortest=5, longest=7, steps=16)},
}
