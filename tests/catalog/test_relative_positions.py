"""Position schemes of the catalog equal loops over queries, keys and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, T, assert_attention, assert_gradients, attention_loop, output, projected, sequence

from flaxformer import Attention, ModelConfig
from flaxformer.catalog import Fire, KerpleLog, KerplePower, RelativeVectors, XPos
from flaxformer.model import specs

ATTENTION = Attention(heads=N)
WEIGHTS = weights_of(ATTENTION, D)


def scheme_weights(scheme):
    """Random weights of a position scheme."""
    model = ModelConfig(layers=1, d_model=D, attention=ATTENTION, positions=scheme)
    dice = np.random.default_rng(5)
    return jax.tree.map(lambda spec: dice.standard_normal(spec.shape), specs(model).positions)


def test_relative_vectors_equal_their_equation():
    scheme = RelativeVectors(farthest=2)
    own = scheme_weights(scheme)
    assert own.table.shape == (5, N, D // N)

    def loop(weights, x):
        query = projected(weights, x, "query")

        def logit(t, s, head):
            return query[t, head] @ own.table[max(-2, min(2, s - t)) + 2, head] / np.sqrt(D // N)

        return output(weights, attention_loop(weights, x, logit))

    with jax.enable_x64(True):
        context = {"scheme": scheme, "scheme_weights": jax.tree.map(jnp.asarray, own)}
    assert_attention(ATTENTION, loop, WEIGHTS, sequence(), **context)


def test_relative_vectors_read_keys_on_both_sides():
    scheme, dice = RelativeVectors(farthest=3), np.random.default_rng(6)
    query, key, mask = dice.standard_normal((2, T, N, D // N)), np.zeros((2, T, N, D // N)), np.ones((N, T, T), bool)
    places, factors = np.array([np.arange(T), np.arange(T) + 3]), dice.standard_normal((2, N, T, T))

    def bias(own, query):
        return scheme.query_bias(own, query, key, jnp.asarray(places), jnp.asarray(places), mask)

    def expected(own, query):
        out = np.zeros((2, N, T, T))
        for b, n, t, s in np.ndindex(*out.shape):
            out[b, n, t, s] = query[b, t, n] @ own.table[max(-3, min(3, s - t)) + 3, n] / np.sqrt(D // N)
        return out

    own = scheme_weights(scheme)
    with jax.enable_x64(True):
        found = bias(jax.tree.map(jnp.asarray, own), jnp.asarray(query))
    np.testing.assert_allclose(found, expected(own, query), rtol=1e-9, atol=1e-12)
    assert_gradients(
        lambda *trees: (bias(*trees) * factors).sum(),
        lambda *trees: (expected(*trees) * factors).sum(),
        (own, query),
    )


def fire(own, t, s, head):
    c, length = abs(own.slope), abs(own.relative_length * 3.0)
    z = np.log(c * abs(t - s) + 1) / np.log(c * max(t, length) + 1)
    return np.maximum(z * own.up + own.up_bias, 0) @ own.down[:, head] + own.down_bias[head]


def kerple_log(own, t, s, head):
    return -max(own.first[head], 0.01) * np.log(1 + max(own.second[head], 0.01) * abs(t - s))


def kerple_power(own, t, s, head):
    return -max(own.first[head], 0.01) * abs(t - s) ** min(max(own.second[head], 0.01), 2)


BIASES = [(Fire(hidden=4, initial_length=3.0), fire), (KerpleLog(), kerple_log), (KerplePower(), kerple_power)]


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("second", [(2.5, 0.004), (1.3, 0.6)])
@pytest.mark.parametrize(("scheme", "equation"), BIASES, ids=lambda x: getattr(x, "__name__", ""))
def test_biases_equal_their_equations(scheme, equation, second):
    own = scheme_weights(scheme)
    if not isinstance(scheme, Fire):  # some of r_1 and r_2 are beyond their bounds
        own = own.replace(first=np.array([0.8, -0.3]), second=np.array(second))
    queries, keys = np.arange(T) + 2, np.arange(T + 2)
    factors = np.random.default_rng(7).standard_normal((N, T, T + 2))

    def bias(own):
        return scheme.bias(own, jnp.asarray(queries), jnp.asarray(keys), N, False)

    def expected(own):
        pairs = [[[equation(own, t, s, head) for s in keys] for t in queries] for head in range(N)]
        return np.array(pairs, float)

    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.asarray, own)
        found, places = bias(wide), (jnp.asarray(queries)[None], jnp.asarray(keys)[None])
        batched = scheme.bias(wide, *places, N, True)
    np.testing.assert_allclose(found, expected(own), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(batched[0], found, rtol=1e-12)
    assert_gradients(lambda own: (bias(own) * factors).sum(), lambda own: (expected(own) * factors).sum(), (own,))


@pytest.mark.parametrize("scheme", [XPos(scale_base=4.0, layout="split"), XPos(scale_base=4.0, layout="interleaved")])
def test_xpos_equals_rotary_positions_with_a_factor_of_the_distance(scheme):
    width = D // N

    def rotated(x, t, s):
        """q_t · k_s of the pairs, rotated by the angles of t − s, times ζ^(t − s)."""
        total = 0
        for i in range(width // 2):
            pair = [i, i + width // 2] if scheme.layout == "split" else [2 * i, 2 * i + 1]
            angle, zeta = (t - s) * 10_000.0 ** (-2 * i / width), (2 * i / width + 0.4) / 1.4
            (a, b), (c, d) = x[0][pair], x[1][pair]
            total += zeta ** ((t - s) / 4) * ((a * c + b * d) * np.cos(angle) + (a * d - b * c) * np.sin(angle))
        return total

    def loop(weights, x):
        query, key = projected(weights, x, "query"), projected(weights, x, "key")

        def logit(t, s, head):
            return rotated((query[t, head], key[s, head]), t, s) / np.sqrt(width)

        return output(weights, attention_loop(weights, x, logit, query=np.zeros_like(query)))

    assert_attention(ATTENTION, loop, WEIGHTS, sequence(), scheme=scheme)


def test_xpos_leaves_the_entries_beyond_the_rotated_width():
    scheme, x = XPos(rotated_width=2, scale_base=4.0), np.random.default_rng(8).standard_normal((T, N, 6))
    for turned in (scheme.rotate, scheme.rotate_key):
        with jax.enable_x64(True):
            found = np.asarray(turned(jnp.asarray(x), jnp.arange(T)))
        np.testing.assert_array_equal(found[..., 2:], x[..., 2:])
        assert np.abs(found[1:, :, :2] - x[1:, :, :2]).min() > 1e-4
