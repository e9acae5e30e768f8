"""Beam search against exhaustive search, and against the same algorithm on lists."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from flaxformer.components import Attention, Dense, Rotary
from flaxformer.config import ModelConfig
from flaxformer.model import apply, specs
from flaxformer.model.beam import beam_search
from flaxformer.model.decoding import generate
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

V, SHORT, STEPS, S, END = 5, 3, 5, 7, 2
CONFIG = ModelConfig(
    vocabulary=V,
    layers=1,
    d_model=12,
    attention=Attention(heads=3),
    feed_forward=Dense(d_ff=17),
    positions=Rotary(),
)
PENALTIES = [0.0, 0.6, 1.0, 2.0]
# The second row is padded, on both sides.
PROMPT = np.array([[3, 1, 4, 0], [0, 2, 3, 0]])
VALID = np.array([[1, 1, 1, 1], [0, 1, 1, 0]], bool)
forward = jax.jit(apply)


def weights(config, seed):
    random = np.random.default_rng(seed)
    std = lambda spec: 1.5 * max(spec.fan_in, 9) ** -0.5  # noqa: E731
    return jax.tree.map(lambda spec: jnp.asarray(random.normal(0, std(spec), spec.shape), jnp.float32), specs(config))


@pytest.fixture(scope="module")
def params():
    return weights(CONFIG, 1)


@pytest.fixture(scope="module")
def tables(params):
    """Return `next_words` of each prompt, without its padding."""
    return [next_words(params, CONFIG, row[valid]) for row, valid in zip(PROMPT, VALID, strict=True)]


def next_words(params, config, prompt, **given):
    """Return {continuation: log probabilities of the next word}, for continuations of fewer than `STEPS` words."""
    said = np.array(list(itertools.product(range(V), repeat=STEPS - 1)))
    tokens = np.zeros((len(said), PROMPT.shape[1] + STEPS - 1), int)  # what stands after the last word is not seen
    tokens[:, : len(prompt)], tokens[:, len(prompt) :][:, : STEPS - 1] = prompt, said
    given = {name: jnp.broadcast_to(x, (len(said), *x.shape)) for name, x in given.items()}
    logits = np.asarray(forward(params, config, jnp.asarray(tokens), **given), np.float64)[:, len(prompt) - 1 :]
    numbers = scipy.special.log_softmax(logits, axis=-1)
    return {tuple(map(int, row[:n])): at[n] for row, at in zip(said, numbers, strict=True) for n in range(STEPS)}


def exhaustive(table, steps, end, penalty):
    """Return every continuation with its score, best first."""
    found = {}
    for words in itertools.product(range(V), repeat=steps):
        words = words[: words.index(end) + 1] if end in words else words
        total = sum(table[words[:n]][words[n]] for n in range(len(words)))
        found[words] = total / len(words) ** penalty
    return sorted(((score, words) for words, score in found.items()), reverse=True)


def searched(table, steps, beams, end, penalty):
    """Return the result of beam search, computed with lists."""
    alive, ended = [(0.0, ())], []
    for n in range(1, steps + 1):
        longer = sorted(((total + table[w][v], (*w, v)) for total, w in alive for v in range(V)), reverse=True)
        ended += [(total / n**penalty, words) for total, words in longer[:beams] if words[-1] == end]
        ended = sorted(ended, reverse=True)[:beams]
        alive = [pair for pair in longer if pair[1][-1] != end][:beams]
        if len(ended) == beams and ended[-1][0] >= alive[0][0] / n**penalty:
            return ended
    return sorted(ended + [(total / steps**penalty, words) for total, words in alive], reverse=True)[:beams]


def equals(result, row, expected, fill):
    steps = result.tokens.shape[-1]
    for place in range(result.scores.shape[1]):
        score, words = expected[place] if place < len(expected) else (-np.inf, ())
        assert result.tokens[row, place].tolist() == [*words, *[fill] * (steps - len(words))]
        assert result.lengths[row, place] == len(words)
        np.testing.assert_allclose(result.scores[row, place], score, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("end", [None, END])
def test_beam_search_with_a_beam_per_sequence_is_exhaustive(params, tables, end):
    for penalty in PENALTIES:
        result = beam_search(
            params, CONFIG, PROMPT, valid=VALID, steps=SHORT, beams=V**SHORT, end=end, length_penalty=penalty
        )
        for row, table in enumerate(tables):
            equals(result, row, exhaustive(table, SHORT, end, penalty), end or 0)
    orders = [[words for _, words in exhaustive(tables[0], SHORT, END, penalty)] for penalty in PENALTIES]
    assert all(first != second for first, second in itertools.pairwise(orders))


@pytest.mark.long
@pytest.mark.parametrize("beams", [1, 3])
def test_equals_the_algorithm_on_lists(params, tables, beams):
    found, best = [], []
    for penalty, end in itertools.product(PENALTIES, range(V)):
        result = beam_search(
            params, CONFIG, PROMPT, valid=VALID, steps=STEPS, beams=beams, end=end, length_penalty=penalty
        )
        for row, table in enumerate(tables):
            expected = searched(table, STEPS, beams, end, penalty)
            equals(result, row, expected, end)
            if end == END:
                found.append(expected)
                best.append(exhaustive(table, STEPS, end, penalty)[:beams])
    assert found != best  # so narrow a beam loses something somewhere


def test_beam_search_with_one_beam_is_greedy(params):
    for end in range(V):
        one = beam_search(params, CONFIG, PROMPT, valid=VALID, steps=STEPS, beams=1, end=end)
        greedy = generate(params, CONFIG, PROMPT, valid=VALID, steps=STEPS, end=end)
        np.testing.assert_array_equal(one.tokens[:, 0], greedy.tokens)
        np.testing.assert_array_equal(one.lengths[:, 0], greedy.lengths)
        np.testing.assert_allclose(one.scores[:, 0], greedy.log_probabilities.sum(-1) / greedy.lengths, rtol=1e-5)


@pytest.mark.slow
def test_beam_search_of_an_encoder_decoder_depends_on_the_source():
    config = CONFIG.replace(layers=2).with_encoder(layers=1)
    params = with_layout(weights(config, 7), "scanned")
    start = np.zeros((2, 1), int)
    source = jax.random.randint(jax.random.key(3), (2, S), 0, V)
    valid = jnp.arange(S)[None] < jnp.array([[S], [3]])
    result = beam_search(params, config, start, steps=STEPS, beams=2, end=END, source=source, source_valid=valid)
    assert (result.tokens[0] != result.tokens[1]).any()
    for row in range(2):
        table = next_words(params, config, start[row], source=source[row], source_valid=valid[row])
        equals(result, row, searched(table, STEPS, 2, END, 1.0), END)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"beams": 0}, "beams is 0; expected at least 1"),
        ({"beams": 2.5}, "beams is 2.5; expected a whole number, at least 1"),
        ({"beams": True}, "beams is True; expected a whole number"),
        ({"length_penalty": float("nan")}, "length_penalty is nan; expected a number from"),
        ({"length_penalty": 1000.0}, "length_penalty is 1000.0; expected a number from −8 to 8"),
        ({"length_penalty": "1"}, "length_penalty is '1'; expected a number"),
        ({"end": 1.5}, "end is 1.5; expected an id"),
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"end": V}, "end is 5; expected an id from 0 to 4"),
    ],
)
def test_invalid_arguments_of_beam_search_are_named(params, how, message):
    with pytest.raises(UserError, match=message):
        beam_search(params, CONFIG, PROMPT, **{"steps": 2, "beams": 2} | how)
