"""Sinusoidal encodings against their formula, and their property that a shift is a rotation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import sinusoidal

T = 29


def expected(positions, d_model, base=10_000.0):
    """Return sines at even columns and cosines at odd ones, in float64."""
    result = np.zeros((*np.shape(positions), d_model))
    for place in np.ndindex(result.shape):
        i, odd = divmod(place[-1], 2)
        angle = positions[place[:-1]] / base ** (2 * i / d_model)
        result[place] = math.cos(angle) if odd else math.sin(angle)
    return result


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
@pytest.mark.parametrize("base", [10_000.0, 17.0])
def test_equals_the_formula(d_model, base):
    result = sinusoidal(jnp.arange(T), d_model, base=base)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected(np.arange(T), d_model, base), atol=1e-5)


def test_the_default_base_is_ten_thousand():
    np.testing.assert_array_equal(sinusoidal(jnp.arange(T), 12), sinusoidal(jnp.arange(T), 12, base=10_000.0))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_positions_may_have_any_batch_axes_and_any_order(shape):
    positions = np.random.default_rng(0).integers(0, 1000, shape)
    result = sinusoidal(jnp.asarray(positions), 7) if shape else sinusoidal(jnp.asarray(positions)[None], 7)[0]
    np.testing.assert_allclose(result, expected(positions, 7), atol=1e-4)


@pytest.mark.parametrize("shift", [1, 5, 13])
def test_shifting_positions_rotates_the_encoding(shift):
    d_model = 12
    pairs = np.asarray(sinusoidal(jnp.arange(T), d_model), np.float64).reshape(T, -1, 2)
    for i in range(d_model // 2):
        angle = shift / 10_000 ** (2 * i / d_model)
        rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        np.testing.assert_allclose(pairs[shift:, i], pairs[:-shift, i] @ rotation.T, atol=1e-5)


def test_inner_products_depend_only_on_the_distance():
    encoding = np.asarray(sinusoidal(jnp.arange(T), 12), np.float64)
    products = encoding @ encoding.T
    for distance in range(T):
        np.testing.assert_allclose(np.diag(products, distance), products[0, distance], atol=1e-4)
    assert (np.diag(products)[:, None] - products + 10 * np.eye(T) > 1e-2).all()


def test_the_base_may_be_traced():
    bases = jnp.array([17.0, 10_000.0])
    result = jax.vmap(lambda base: sinusoidal(jnp.arange(T), 7, base=base))(bases)
    np.testing.assert_allclose(result, [expected(np.arange(T), 7, base) for base in (17.0, 10_000.0)], atol=1e-5)


def test_distant_positions_stay_accurate():
    positions = np.array([4095, 65_521])
    np.testing.assert_allclose(sinusoidal(jnp.asarray(positions), 12), expected(positions, 12), atol=2e-2)


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
@pytest.mark.parametrize("shape", [(T,), (2, 3)])
def test_split_puts_all_sines_before_all_cosines(d_model, shape):
    positions = np.random.default_rng(1).integers(0, 100, shape)
    result = sinusoidal(jnp.asarray(positions), d_model, base=17.0, interleaved=False)
    columns = [*range(0, d_model, 2), *range(1, d_model, 2)]
    np.testing.assert_allclose(result, expected(positions, d_model, 17.0)[..., columns], atol=3e-5)


@pytest.mark.parametrize("interleaved", [True, False])
def test_an_encoding_does_not_depend_on_other_positions(interleaved):
    positions = np.array([3, 0, 17, 3, 8])
    encode = jax.jit(lambda positions: sinusoidal(positions, 7, interleaved=interleaved))
    table = encode(jnp.arange(T))
    np.testing.assert_allclose(encode(jnp.asarray(positions)), np.asarray(table)[positions], atol=1e-6)
