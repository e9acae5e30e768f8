"""Brevo: all words on which a word depends, directly or not, each after those on which it depends.

    ⟨start⟩ a b for every edge "b depends on a" in random order ⟨of⟩ q ⟨is⟩ a topological order of q's ancestors and q

Family: tasks
Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
arXiv:2512.17351; github.com/facebookresearch/PhysicsLM4 at 7580696, brevo.py, whose settings are the variants.
Claim: Canon layers raise the breadth of reasoning by about 30 %; the answer needs a sort before its first word.
Cost: none; training has 3 to `nodes` words and scores the answer, evaluation has `nodes` and scores what is determined.
Verified: counts of edges and of words of answers of the published generator; a sort in Python reaches the ceiling.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer import Batch, draw_distinct, static
from flaxformer.catalog import WordTask

MOST_EDGES = 4


class Brevo(WordTask):
    """Predict a topological order of the ancestors of a word in a random graph of at most 4 edges into and out of each.

    An order is drawn at random, and any other is as good: the published measure is `is_answer` of a generated one. The
    accuracy in evaluation is that on the words that are the only ones that can follow, which a solver knows.
    """

    nodes: int = static(110, at_least=3)
    letters: int = static(110, at_least=1)

    @property
    def vocabulary(self) -> int:
        """Tokens of words, ⟨start⟩, ⟨of⟩, ⟨is⟩, ⟨end⟩."""
        return 2 * self.letters + 4

    @property
    def sequence_length(self) -> int:
        return self.longest * (2 * MOST_EDGES * (self.nodes - 1) + 1 + self.nodes) + 3

    def example(self, key: Array) -> Batch:
        return self.sample(key, jnp.int32(self.nodes), training=False)

    def training_example(self, key: Array) -> Batch:
        for_count, key = jax.random.split(key)
        return self.sample(key, self.count_nodes(for_count), training=True)

    def sample(self, key: Array, count: Int[Array, ""], *, training: bool) -> Batch:
        """Return an example with `count` words; in training, all of the answer is scored with ⟨is⟩ and ⟨end⟩."""
        for_words, for_graph, for_edges, for_order = jax.random.split(key, 4)
        words, lengths = self.draw_words(for_words, count)
        parents = self.draw_graph(for_graph, count)
        order, size, is_only = self.draw_order(for_order, parents, count)
        child, parent = jnp.nonzero(parents, size=MOST_EDGES * (self.nodes - 1), fill_value=self.nodes)
        edges = jax.random.permutation(for_edges, jnp.stack([parent, child], axis=1)).reshape(-1)
        signs = 2 * self.letters + jnp.arange(4)
        width = ((0, 0), (0, self.longest - 1))
        start, of, is_, end = (jnp.pad(sign.reshape(1, 1), width) for sign in signs)
        node = jnp.concatenate([edges.clip(0, self.nodes - 1), count[None] - 1, order])
        sizes = lengths[node] * jnp.concatenate([edges < self.nodes, jnp.ones(1, bool), jnp.arange(self.nodes) < size])
        asked = edges.size
        pieces = jnp.concatenate([start, words[node[:asked]], of, words[node[asked]][None], is_, words[order], end])
        ones = jnp.ones(1, jnp.int32)
        sizes = jnp.concatenate([ones, sizes[:asked], ones, sizes[asked : asked + 1], ones, sizes[asked + 1 :], ones])
        answer = jnp.arange(len(pieces)) >= asked + 3
        if not training:  # neither ⟨is⟩ nor ⟨end⟩
            answer = answer.at[asked + 4 : -1].set(is_only).at[asked + 3].set(False).at[-1].set(False)
        return self.join(pieces, sizes, answer)

    def draw_graph(self, key: Array, count: Int[Array, ""]) -> Bool[Array, "nodes nodes"]:
        """Return True at [b, a] where b depends on a, which is an earlier node; the first nodes depend on none."""
        for_leaves, for_edges = jax.random.split(key)
        leaves = jax.random.randint(for_leaves, (), 1, (count - 1) // 4 + 2)

        def next_node(uses: Array, node: tuple[Array, Array]) -> tuple[Array, Array]:
            number, key = node
            for_count, for_parents = jax.random.split(key)
            is_free = (jnp.arange(self.nodes) < number) & (uses < MOST_EDGES)
            taken = jax.random.randint(for_count, (), 1, jnp.clip(is_free.sum(), 1, MOST_EDGES) + 1)
            most = min(MOST_EDGES, self.nodes)
            chosen = draw_distinct(for_parents, jnp.where(is_free, 0.0, -jnp.inf), most)
            row = jnp.zeros(self.nodes, bool).at[chosen].set(jnp.arange(most) < taken)
            row &= (number >= leaves) & (number < count)
            return uses + row, row

        keys = jax.random.split(for_edges, self.nodes)
        return jax.lax.scan(next_node, jnp.zeros(self.nodes, jnp.int32), (jnp.arange(self.nodes), keys))[1]

    def draw_order(
        self, key: Array, parents: Bool[Array, "nodes nodes"], count: Int[Array, ""]
    ) -> tuple[Int[Array, "nodes"], Int[Array, ""], Bool[Array, "nodes"]]:
        """Return a random topological order of the last node's ancestors, their number, and which are determined.

        The order is drawn from its end: each node is a random one of those of which all dependents were drawn.
        """

        def previous(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
            is_drawn, is_ready = state
            node = jnp.where(is_ready.any(), jax.random.categorical(key, jnp.where(is_ready, 0, -jnp.inf)), self.nodes)
            is_drawn = is_drawn.at[node].set(True, mode="drop")
            is_ready = is_needed & ~is_drawn & ~(parents & ~is_drawn[:, None] & is_needed[:, None]).any(axis=0)
            return (is_drawn, is_ready), node

        def add_parents(is_needed: Array, number: Array) -> tuple[Array, None]:
            return is_needed | (is_needed[number] & parents[number]), None

        last = jnp.arange(self.nodes) == count - 1
        is_needed = jax.lax.scan(add_parents, last, jnp.arange(self.nodes)[::-1])[0]
        none = jnp.zeros(self.nodes, bool)
        backward = jax.lax.scan(previous, (none, last), jax.random.split(key, self.nodes))[1]
        order = jnp.roll(backward[::-1], (size := is_needed.sum()) - self.nodes)

        def following(is_done: Array, node: Array) -> tuple[Array, Array]:
            is_next = is_needed & ~is_done & ~(parents & ~is_done[None]).any(axis=1)
            return is_done.at[node].set(True, mode="drop"), is_next.sum() == 1

        is_only = jax.lax.scan(following, none, order)[1]
        return order.clip(0, self.nodes - 1), size, is_only


def is_answer(edges: Sequence[tuple[object, object]], asked: object, answer: Sequence[object]) -> bool:
    """Return True if the answer is a topological order of the ancestors of a word, and of the word.

    Args:
      edges: pairs (a, b), where b depends on a.
    """
    parents: dict[object, set[object]] = {}
    for a, b in edges:
        parents.setdefault(b, set()).add(a)
    needed, missing = set(), [asked]
    while missing:
        needed.add(node := missing.pop())
        missing += parents.get(node, set()) - needed
    is_sorted = all(parents.get(node, set()) <= set(answer[:place]) for place, node in enumerate(answer))
    return is_sorted and len(answer) == len(needed) and set(answer) == needed


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "Brevo1": {"task": Brevo()},
    "Brevo2": {"task": Brevo(nodes=50, letters=4, shortest=2, longest=4)},
}
