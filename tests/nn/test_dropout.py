"""Dropout: identity without key or rate, values, mean, randomness, gradient and dtype; masks of parts of a batch."""

import itertools

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
def test_without_key_or_rate_dropout_is_the_identity(key, rate):
    x = numbers()
    assert dropout(key, rate, x) is x


def test_rate_zero_changes_nothing():
    np.testing.assert_array_equal(drop(KEY, 0.0, numbers()), numbers())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_entries_are_zero_or_scaled_by_the_inverse_rate(rate):
    x = np.asarray(numbers())
    y = np.asarray(drop(KEY, rate, jnp.asarray(x)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=1e-5)
    # Five standard deviations of a binomial share.
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / x.size)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_preserves_the_mean(rate):
    y = np.asarray(drop(KEY, rate, jnp.ones(SHAPE)), np.float64)
    assert abs(y.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / y.size)
    for axis in (0, 1):  # rows and columns are dropped number by number, not whole
        assert y.mean(axis).std() < 2 * np.sqrt(rate / (1 - rate) / y.shape[axis])


def test_dropout_depends_only_on_the_key():
    x = numbers()
    first, again, other = drop(KEY, 0.5, x), drop(KEY, 0.5, 3 * x), drop(jax.random.key(1), 0.5, x)
    np.testing.assert_array_equal(first == 0, again == 0)
    agreement = np.mean((np.asarray(first) == 0) == (np.asarray(other) == 0))
    assert abs(agreement - 0.5) < 0.03


def test_a_higher_rate_drops_a_superset():
    """With the same key, two arms of a study that differ in the rate share the pattern."""
    low, high = (np.asarray(drop(KEY, rate, jnp.ones(SHAPE))) == 0 for rate in (0.2, 0.4))
    assert high[low].all()
    assert high.sum() > low.sum()


def test_the_gradient_has_the_same_dropout_pattern():
    x = numbers()
    gradient = jax.jit(jax.grad(lambda x: drop(KEY, 0.3, x).sum()))(x)
    kept = np.asarray(drop(KEY, 0.3, x)) != 0
    np.testing.assert_allclose(gradient, np.where(kept, 1 / 0.7, 0), rtol=1e-6)


def test_dropped_entries_may_be_nan():
    y = drop(KEY, 0.5, jnp.where(drop(KEY, 0.5, jnp.ones(SHAPE)) == 0, jnp.nan, 1.0))
    assert np.isfinite(y).all()


def test_the_rate_may_be_traced_and_mapped():
    x = numbers()
    rows = jax.vmap(lambda rate: dropout(KEY, rate, x))(jnp.array([0.0, 0.3, 0.6]))
    for row, rate in zip(rows, (0.0, 0.3, 0.6), strict=True):
        np.testing.assert_allclose(row, drop(KEY, rate, x), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.3, jnp.float32(0.3)], ids=["number", "array"])
def test_dropout_of_bfloat16_is_bfloat16(rate):
    """A traced rate is a float32 array, which must not change the dtype of x."""
    assert drop(KEY, rate, jnp.ones(SHAPE, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.every(6)
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (7, 5, 11), (7, 2, 3, 5)])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6], [4], [1, 3, 5], [6, 0]])
def test_a_part_of_a_batch_has_the_mask_of_the_whole_batch(shape, rows):
    x = jax.random.normal(jax.random.key(1), shape)
    for rate in (0.3, jnp.float32(0.3)):
        whole = dropout(KEY, rate, x)
        part = dropout(KEY, rate, x[jnp.array(rows)], jnp.array(rows))
        np.testing.assert_array_equal(part, whole[jnp.array(rows)])


def test_the_mask_of_an_example_is_that_of_jax_with_its_key():
    x = jnp.ones((3, 4))
    for row, kept in enumerate(dropout(KEY, 0.3, x) > 0):
        np.testing.assert_array_equal(kept, jax.random.bernoulli(jax.random.fold_in(KEY, row), 0.7, (4,)))


def test_examples_have_different_masks():
    whole = dropout(KEY, 0.5, jnp.ones((4, 4096))) > 0
    for one, other in itertools.combinations(whole, 2):
        assert 0.45 < float((one == other).mean()) < 0.55


def test_a_stack_of_keys_has_the_masks_of_each_key():
    keys, x, rows = jax.random.split(KEY, 3), jnp.ones((2, 5)), jnp.array([4, 2])
    together = jax.vmap(lambda key: dropout(key, 0.5, x, rows))(keys)
    for key, own in zip(keys, together, strict=True):
        np.testing.assert_array_equal(own, dropout(key, 0.5, x, rows))


def test_parts_have_different_masks_with_another_generator():
    key, x = jax.random.key(5, impl="rbg"), jnp.ones((2, 64))
    one, other = (dropout(key, 0.5, x, jnp.array(rows)) for rows in ([0, 1], [2, 3]))
    assert not np.array_equal(one, other)
