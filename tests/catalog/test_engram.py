"""The n-gram memory equals a loop over tokens, with padding between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import weights_of
from references import assert_equal, context_of, drawn

from flaxformer.catalog import EngramNetwork

T, D, ROWS, HASHES = 9, 6, 13, 2
TOKENS = np.array([5, 0, 2, 7, 0, 5, 2, 7, 3])
X = drawn(x=(T, D))["x"]
COMPONENT = EngramNetwork(rows=ROWS, hashes=HASHES, slot=3, d_ff=4)
apply, step = jax.jit(COMPONENT.apply), jax.jit(COMPONENT.step)


def row_of(tokens, number):
    """Row of the last tokens, the latest first: integers of any size, reduced to 32 bits at the end of each product."""
    mixed = 0
    for back, token in enumerate(tokens):
        mixed ^= (token + 1) * (0x9E3779B1 * (2 * (number * 3 + back) + 1)) % 2**32
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B % 2**32
    return (mixed ^ (mixed >> 16)) % ROWS


def loop(weights, x, valid, xp=np):
    """Update of every token that is there, by its place; with `xp=jnp`, to be differentiated."""
    rms = lambda x: x / xp.sqrt((x * x).mean() + 1e-6)  # noqa: E731
    seen, values, results = [-1, -1], [xp.zeros(D)] * 9, {}
    for t in np.flatnonzero(valid):
        seen.append(int(TOKENS[t]))
        e = []
        for number in range(HASHES):
            for size in (2, 3):
                table = weights.tables[2 * number + size - 2]
                e.append(table[row_of(seen[: -size - 1 : -1], number)])
        e = xp.concatenate(e)
        query = rms(x[t]) * weights.query_gain
        key = rms(e @ weights.memory_key) * weights.key_gain
        v = (e @ weights.memory_value) / (1 + xp.exp(-(query @ key) / np.sqrt(D)))
        values.append(rms(v) * weights.value_gain)
        mixed = sum(weights.kernel[3 - i] * values[len(values) - 1 - 3 * i] for i in range(4))
        hidden = x[t] @ weights.up + weights.up_bias
        dense = (hidden * (hidden > 0)) @ weights.down + weights.down_bias
        results[t] = dense + v + mixed / (1 + xp.exp(-mixed))
    return results


@pytest.mark.parametrize("valid", [np.ones(T, bool), np.array([1, 0, 1, 1, 0, 1, 1, 1, 1], bool)])
def test_engram_equals_a_loop_and_can_be_read_in_parts(valid):
    weights = weights_of(COMPONENT, D)
    expected = loop(weights, X, valid)
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, weights)

        def part(start, stop):
            fields = {"tokens": jnp.asarray(TOKENS[start:stop]), "valid": jnp.asarray(valid[start:stop])}
            return jnp.asarray(X[start:stop]), context_of(X[start:stop], **fields)

        whole = apply(arrays, *part(0, T))
        state, pieces = COMPONENT.init_state(arrays, (), T, jnp.float64), []
        for start, stop in ((0, 4), (4, 5), (5, T)):
            x, context = part(start, stop)
            y, state = step(arrays, x, state, context)
            pieces.append(y)
        for t, row in expected.items():
            np.testing.assert_allclose(whole[t], row, rtol=1e-9)
            np.testing.assert_allclose(jnp.concatenate(pieces)[t], row, rtol=1e-9)


def test_gradients_equal_those_of_a_loop():
    valid = np.array([1, 0, 1, 1, 0, 1, 1, 1, 1], bool)

    def update(weights, x):
        context = context_of(x, tokens=jnp.asarray(TOKENS), valid=jnp.asarray(valid))
        return COMPONENT.apply(weights, x, context)[valid]

    def update_by_loop(weights, x):
        return jnp.stack([*loop(weights, x, valid, jnp).values()])

    assert_equal(update, update_by_loop, weights_of(COMPONENT, D), X)


def test_hashes_use_all_rows_evenly():
    from flaxformer.catalog.engram import hashed

    pairs = np.stack(np.meshgrid(np.arange(64), np.arange(64)), -1).reshape(-1, 2)
    rows = np.asarray(hashed([jnp.asarray(pairs[:, 0]), jnp.asarray(pairs[:, 1])], 2, 64))
    counts = np.stack([np.bincount(rows[:, j], minlength=64) for j in range(2)])
    assert (abs(counts - 64) < 6 * 8).all()
    assert (rows[:, 0] != rows[:, 1]).mean() > 0.9
