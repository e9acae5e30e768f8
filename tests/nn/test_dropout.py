"""Dropout: what it keeps, what it zeroes, and when it is nothing at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.dropout import dropout

SHAPE = 101, 103
KEY = jax.random.key(0)
drop = jax.jit(dropout)


def numbers():
    return jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, SHAPE), jnp.float32)


@pytest.mark.parametrize(("key", "rate"), [(None, 0.3), (KEY, None), (None, None)])
def test_without_a_key_or_a_rate_it_is_the_identity(key, rate):
    x = numbers()
    assert dropout(key, rate, x) is x


def test_rate_zero_keeps_every_number():
    np.testing.assert_array_equal(drop(KEY, 0.0, numbers()), numbers())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_is_kept_is_scaled_and_the_rest_is_zero(rate):
    x = np.asarray(numbers())
    y = np.asarray(drop(KEY, rate, jnp.asarray(x)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=1e-5)
    # Five standard deviations of a binomial share.
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / x.size)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_mean_is_kept(rate):
    y = np.asarray(drop(KEY, rate, jnp.ones(SHAPE)), np.float64)
    assert abs(y.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / y.size)
    for axis in (0, 1):  # rows and columns are dropped number by number, not whole
        assert y.mean(axis).std() < 2 * np.sqrt(rate / (1 - rate) / y.shape[axis])


def test_the_key_decides_and_nothing_else():
    x = numbers()
    first, again, other = drop(KEY, 0.5, x), drop(KEY, 0.5, 3 * x), drop(jax.random.key(1), 0.5, x)
    np.testing.assert_array_equal(first == 0, again == 0)
    agreement = np.mean((np.asarray(first) == 0) == (np.asarray(other) == 0))
    assert abs(agreement - 0.5) < 0.03


def test_a_higher_rate_drops_what_a_lower_one_does_and_more():
    """The same key at two rates: two arms of a study differ by the rate alone."""
    low, high = (np.asarray(drop(KEY, rate, jnp.ones(SHAPE))) == 0 for rate in (0.2, 0.4))
    assert high[low].all()
    assert high.sum() > low.sum()


def test_the_gradient_is_the_same_noise():
    x = numbers()
    gradient = jax.jit(jax.grad(lambda x: drop(KEY, 0.3, x).sum()))(x)
    kept = np.asarray(drop(KEY, 0.3, x)) != 0
    np.testing.assert_allclose(gradient, np.where(kept, 1 / 0.7, 0), rtol=1e-6)


def test_what_is_dropped_may_be_nan():
    y = drop(KEY, 0.5, jnp.where(drop(KEY, 0.5, jnp.ones(SHAPE)) == 0, jnp.nan, 1.0))
    assert np.isfinite(y).all()


def test_the_rate_may_be_traced_and_mapped():
    x = numbers()
    rows = jax.vmap(lambda rate: dropout(KEY, rate, x))(jnp.array([0.0, 0.3, 0.6]))
    for row, rate in zip(rows, (0.0, 0.3, 0.6), strict=True):
        np.testing.assert_allclose(row, drop(KEY, rate, x), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.3, jnp.float32(0.3)], ids=["number", "array"])
def test_a_bfloat16_stream_stays_bfloat16(rate):
    """A leaf of a config is a float32 array once it is traced; it must not widen the stream."""
    assert drop(KEY, rate, jnp.ones(SHAPE, jnp.bfloat16)).dtype == jnp.bfloat16
