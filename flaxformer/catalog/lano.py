"""Lano: sentences of a random context-free grammar in layers, whose structure is ambiguous locally.

    S → … → sentence: six times, each symbol of a layer is replaced by a body, two or three symbols of the next layer

Family: tasks
Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
arXiv:2512.17351; github.com/facebookresearch/PhysicsLM4 at 7580696, Lano-cfg, with the sizes of its cfg3f (six layers
of three symbols, three or four bodies). The grammar is drawn as there, by `grammar`; it is not the published one.
Claim: it measures reasoning about structure, which Canon layers improve in Transformers and in linear models.
Cost: none.
Verified: counts of tokens and lengths of the published generator on this grammar; a parser in Python.
"""

import functools
import math
import random
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, SyntheticTask, join_pieces, next_token, static

CEILING_SENTENCES, MOST_LAYERS, CEILING = 32, 4, 0.612
Grammar = list[list[list[tuple[int, ...]]]]
"""Bodies of the symbols of each layer but the last."""


class Lano(SyntheticTask):
    """Predict the next token of ⟨start⟩ sentence ⟨end⟩; all are scored, and no model predicts all.

    layers: layers below the start symbol; the last one's symbols are the tokens.
    symbols: symbols of each of these layers.
    fewest, most: numbers of bodies of a symbol, of which each has the same probability.
    shortest, longest: numbers of symbols of a body; no two symbols of a layer have the same body.
    grammar: number of the random grammar.
    """

    layers: int = static(6, at_least=1, at_most=10)
    symbols: int = static(3, at_least=2)
    fewest: int = static(3, at_least=1)
    most: int = static(4, at_least=1)
    shortest: int = static(2, at_least=1)
    longest: int = static(3, at_least=1)
    grammar: int = static(0, at_least=0)

    def problems(self) -> Iterator[str]:
        bodies = sum(self.symbols**length for length in range(self.shortest, self.longest + 1))
        if not self.fewest <= self.most <= bodies // self.symbols:
            yield f"most is {self.most}; expected at least fewest, {self.fewest}, and at most {bodies // self.symbols}"
        if self.longest < self.shortest:
            yield f"longest is {self.longest}; expected at least shortest, {self.shortest}"

    @property
    def bodies(self) -> Grammar:
        """Bodies of each symbol of each layer, from the start symbol on."""
        draw, grammar = random.Random(self.grammar), []
        for layer in range(self.layers):
            taken: list[tuple[int, ...]] = []
            for _ in range(self.symbols if layer else 1):
                count, last = draw.randint(self.fewest, self.most), len(taken)
                while len(taken) < last + count:
                    length = draw.randint(self.shortest, self.longest)
                    body = tuple(draw.randrange(self.symbols) for _ in range(length))
                    taken += [body] * (body not in taken)
                grammar.append((layer, taken[last:]))
        return [[bodies for number, bodies in grammar if number == layer] for layer in range(self.layers)]

    @property
    def vocabulary(self) -> int:
        """Symbols of the last layer, ⟨start⟩, ⟨end⟩."""
        return self.symbols + 2

    @property
    def sequence_length(self) -> int:
        return self.longest**self.layers + 1

    @property
    def ceiling(self) -> float | None:
        """Mean probability of the most probable next token by the grammar, estimated from 32 sentences.

        With more than four layers it takes minutes, by `ceiling_of`: known for the default grammar, None for others.
        """
        shape = self.replace(batch_size=1, evaluation_batches=1, evaluation_batch_size=None)
        if self.layers > MOST_LAYERS:
            return CEILING if shape == Lano(batch_size=1, evaluation_batches=1) else None
        return ceiling_of(shape)

    @property
    def chance(self) -> float:
        """A random symbol or ⟨end⟩."""
        return 1 / (self.symbols + 1)

    def example(self, key: Array) -> Batch:
        sentence, count = jnp.zeros(1, jnp.int32), jnp.int32(1)
        for layer, bodies in enumerate(self.bodies):
            table = [(*body, *[0] * (self.longest - len(body))) for each in bodies for body in each]
            sizes = jnp.array([len(body) for each in bodies for body in each], jnp.int32)
            counts = jnp.array([len(each) for each in bodies], jnp.int32)
            key_of_layer = jax.random.fold_in(key, layer)
            choice = jax.random.randint(key_of_layer, sentence.shape, 0, counts[sentence])
            body = (jnp.cumsum(counts) - counts)[sentence] + choice
            lengths = sizes[body] * (jnp.arange(sentence.size) < count)
            sentence = join_pieces(jnp.array(table, jnp.int32)[body], lengths, self.longest ** (layer + 1))
            count = lengths.sum()
        place = jnp.arange(sentence.size + 1)
        ended = jnp.where(place < count, jnp.append(sentence, 0), self.symbols + 1)
        tokens = jnp.concatenate([jnp.array([self.symbols]), ended])
        batch = next_token(tokens, jnp.append(True, place <= count))
        return batch.replace(valid=place <= count, padding_is_behind=True)

    def references(self) -> dict[str, float]:
        """Return the least loss: entropy of the choices of a sentence, over its expected number of tokens with ⟨end⟩.

        It is a bound from below if a sentence has two derivations.
        """
        expected, entropy = [1.0], 0.0
        for bodies in self.bodies:
            entropy += sum(count * math.log(len(each)) for count, each in zip(expected, bodies, strict=True))
            sums = [0.0] * self.symbols
            for count, each in zip(expected, bodies, strict=True):
                for body in each:
                    for symbol in body:
                        sums[symbol] += count / len(each)
            expected = sums
        return {"entropy": entropy / (sum(expected) + 1)}


@functools.cache
def ceiling_of(task: Lano) -> float:
    """Return the mean probability of the most probable next token, by all derivations of 32 random sentences."""
    draw, bodies, best = random.Random(0), task.bodies, []
    for _ in range(CEILING_SENTENCES):
        derivations: dict[tuple[tuple[int, ...], ...], float] = {((0,),): 1.0}
        token: int | None = -1
        while token is not None:
            after: dict[int | None, dict[tuple[tuple[int, ...], ...], float]] = {}
            for coming, probability in derivations.items():
                for step, following, state in next_tokens(coming, bodies):
                    states = after.setdefault(following, {})
                    states[state] = states.get(state, 0.0) + probability * step
            chances = [sum(states.values()) for states in after.values()]
            best.append(max(chances))
            ((token, states),) = draw.choices([*after.items()], chances)
            derivations = {state: probability / sum(states.values()) for state, probability in states.items()}
    return sum(best) / len(best)


def next_tokens(
    coming: tuple[tuple[int, ...], ...], bodies: Grammar
) -> Iterator[tuple[float, int | None, tuple[tuple[int, ...], ...]]]:
    """Yield probability, next token (None at the end) and what comes after it, for each way to go on in a derivation.

    Args:
      coming: symbols of each layer, from the start symbol's on, that are still to be replaced.
    """
    while coming and not coming[-1]:
        coming = coming[:-1]
    if not coming:
        yield 1.0, None, ()
        return
    *above, (symbol, *later) = coming
    state = (*above, tuple(later))
    if len(coming) > len(bodies):
        yield 1.0, symbol, state
        return
    each = bodies[len(above)][symbol]
    for body in each:
        for probability, token, after in next_tokens((*state, body), bodies):
            yield probability / len(each), token, after


VARIANTS: Mapping[str, Mapping[str, object]] = {"Lano": {"task": Lano()}}
