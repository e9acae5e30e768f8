"""Latent attention equals a loop over its equations, in the form for training and in the form for decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import applied, weights_of
from naive import D, N, T, assert_attention, rms_norm, sequence, softmax

from flaxformer import Context, NoPositions, Rotary
from flaxformer.catalog import LatentAttention
from flaxformer.nn import Causal, Explicit

COMPONENT = LatentAttention(heads=N, d_head=4, d_latent=5, d_query_latent=6, d_rotary=2)
WEIGHTS = weights_of(COMPONENT, D)


def turned(pair, t):
    """A pair of numbers, rotated by the angle t."""
    a, b = pair
    return np.array([a * np.cos(t) - b * np.sin(t), a * np.sin(t) + b * np.cos(t)])


def loop(weights, x):
    y = np.zeros((len(x), D))
    c = [rms_norm(token @ weights.down) * weights.gain for token in x]
    c_query = [rms_norm(token @ weights.query_down) * weights.query_gain for token in x]
    for t in range(len(x)):
        for n in range(N):
            query = [*(c_query[t] @ weights.query_up[:, n]), *turned(c_query[t] @ weights.query_rotary[:, n], t)]
            keys = [[*(c[s] @ weights.key_up[:, n]), *turned(x[s] @ weights.key_rotary, s)] for s in range(t + 1)]
            attention = softmax([np.dot(query, key) / np.sqrt(4 + 2) for key in keys])
            y[t] += sum(attention[s] * (c[s] @ weights.value_up[:, n]) for s in range(t + 1)) @ weights.out[n]
    return y


step = jax.jit(COMPONENT.step)


def test_latent_attention_equals_its_equations():
    assert_attention(COMPONENT, loop, WEIGHTS, sequence(), scheme=Rotary())


@pytest.mark.parametrize("parts", [[7], [3, 1, 1, 1, 1]])
def test_decoding_from_the_latent_vectors_equals_the_equations(parts):
    x, capacity = sequence(), T + 2
    found, start = [], 0
    with jax.enable_x64(True):
        weights = jax.tree.map(jnp.asarray, WEIGHTS)
        state = COMPONENT.init_state(weights, (), capacity, jnp.float64)
        for length in parts:
            places = jnp.arange(start, start + length)
            context = Context(
                query_positions=places,
                key_positions=jnp.arange(capacity),
                mask=Causal(start) & Explicit(jnp.arange(capacity) < start + length),
                offset=jnp.asarray(start),
                scheme=Rotary(),
            )
            y, state = step(weights, jnp.asarray(x[start : start + length]), state, context)
            found.append(y)
            start += length
    np.testing.assert_allclose(np.concatenate(found), loop(WEIGHTS, x), rtol=1e-9, atol=1e-12)
    assert state.shape == (capacity, 5 + 2)


def test_the_numbers_of_weights_are_those_of_the_equations():
    d_model, heads, d_head = 64, 4, 16
    published = LatentAttention(heads=heads)
    d_latent, d_query, d_rotary = 4 * d_head, 12 * d_head, d_head // 2
    expected = d_model * (d_latent + d_rotary) + d_latent * heads * 2 * d_head + heads * d_head * d_model
    expected += d_model * d_query + d_query * heads * (d_head + d_rotary) + d_latent + d_query
    weights = weights_of(published, d_model)
    assert sum(x.size for x in jax.tree.leaves(weights)) == expected
    per_token = published.init_state(weights, (), 1, jnp.float32).size
    assert per_token == d_latent + d_rotary == 2.25 * (2 * d_head)  # keys and values of 2.25 groups


def test_without_positions_the_rotary_part_is_a_key_of_all_heads():
    y, _ = applied(COMPONENT, WEIGHTS, sequence(), mask=Causal(), scheme=NoPositions())
    plain, _ = applied(COMPONENT, WEIGHTS, sequence(), mask=Causal())
    np.testing.assert_array_equal(y, plain)
