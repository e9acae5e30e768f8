"""Linear recurrences in chunks, and convolutions over a few tokens, equal loops over the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.linear_recurrence import decayed_products, linear_recurrence, short_convolution

T, N, DK, DV = 9, 2, 3, 4
VALID = np.array([[True] * T, [False, True, True, False, True, True, True, False, True]])


def drawn(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("chunk", [1, 4, 16])
@pytest.mark.parametrize(("width", "with_update"), [(1, False), (1, True), (DK, False), (DK, True), (0, True)])
def test_a_linear_recurrence_in_chunks_is_its_loop(chunk, width, with_update):
    query, key, value = drawn(2, T, N, DK), drawn(2, T, N, DK) + 0.1, drawn(2, T, N, DV)
    log_decay = -np.abs(drawn(2, T, N, width)) if width else None
    update = (0.3 * drawn(2, T, N, DK + 0), 0.3 * drawn(2, T, N, DK)[::-1]) if with_update else None
    state = drawn(2, N, DK, DV)
    expected, matrices = np.zeros((2, T, N, DV)), state.copy()
    for row, t, head in np.ndindex(2, T, N):
        before = matrices[row, head].copy()
        if VALID[row, t]:
            decay = np.exp(log_decay[row, t, head])[:, None] if width else 1
            matrices[row, head] = decay * before + np.outer(key[row, t, head], value[row, t, head])
            if update:
                a, b = (x[row, t, head] for x in update)
                matrices[row, head] += np.outer(b, a @ before)
        expected[row, t, head] = query[row, t, head] @ matrices[row, head]
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, (query, key, value, log_decay, state))
        y, after = jax.jit(linear_recurrence, static_argnames="chunk")(
            *arrays, update=jax.tree.map(jnp.asarray, update), valid=jnp.asarray(VALID), chunk=chunk
        )
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after, matrices, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("width", [2, 4])
def test_a_short_convolution_skips_padding_and_can_be_read_in_parts(width):
    x, kernel = drawn(2, T, N, DK), drawn(width, N, DK)
    expected = np.zeros_like(x)
    for row in range(2):
        places = np.flatnonzero(VALID[row])
        for index, place in enumerate(places):
            for i in range(min(width, index + 1)):
                expected[row, place] += kernel[width - 1 - i] * x[row, places[index - i]]
    with jax.enable_x64(True):
        state, parts = jnp.zeros((2, width - 1, N, DK)), []
        for cut in (slice(0, 5), slice(5, 6), slice(6, T)):
            hidden = jnp.where(VALID[:, cut, None, None], x[:, cut], jnp.nan)
            y, state = short_convolution(hidden, jnp.asarray(kernel), state, jnp.asarray(VALID[:, cut]))
            parts.append(y)
        whole, _ = short_convolution(jnp.asarray(x), jnp.asarray(kernel), jnp.zeros((2, width - 1, N, DK)))
    np.testing.assert_allclose(np.concatenate(parts, 1)[VALID], expected[VALID], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(whole[0], expected[0], rtol=1e-9, atol=1e-12)


def test_chunks_of_other_lengths_and_equal_decays_are_computed_by_the_equation():
    x, one = jnp.ones((2, 8, 3)), jnp.zeros((2, 8, 1))
    assert decayed_products.refusal("halves", x, x, x, x, False) is None
    assert "is a matrix product" in decayed_products.refusal("halves", x, x, one, one, False)
    assert "expected a power of 2" in decayed_products.refusal("halves", *[x[:, :6]] * 4, True)
