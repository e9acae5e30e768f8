"""Norms against their equations in float64, their invariances, and extreme inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import layer_norm, rms_norm
from flaxformer.nn.formulations import compiling_for

B, T, D = 2, 5, 7


@pytest.fixture(autouse=True, params=["cpu", "gpu"])
def platform(request):
    """Both formulas of the derivative; the one for accelerators runs on a CPU too."""
    with compiling_for(request.param):
        yield


both = pytest.mark.parametrize("norm", [layer_norm, rms_norm])


def expected(norm, x, gain=None, bias=None, epsilon=None):
    """Return the norm by its equation, one vector at a time, in float64."""
    x = np.asarray(x, np.float64)
    epsilon = (1e-5 if norm is layer_norm else 1e-6) if epsilon is None else epsilon
    y = np.zeros_like(x)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place]
        mean = sum(row) / len(row) if norm is layer_norm else 0.0
        y[place] = (row - mean) / np.sqrt(sum((row - mean) ** 2) / len(row) + epsilon)
        y[place] = y[place] * (1 if gain is None else gain) + (0 if bias is None else bias)
    return y


def numbers(*shape, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(1.3, 2.1, shape), random.normal(1, 0.5, shape[-1]), random.normal(size=shape[-1])


def float32(*arrays):
    return [None if x is None else jnp.asarray(x, jnp.float32) for x in arrays]


@both
@pytest.mark.parametrize("offset", [0.0, 3.0, 100.0])
def test_values_and_gradients_in_bfloat16(norm, offset):
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(B, T, 64)) + offset, jnp.bfloat16)
    gain, cotangent = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in (64, x.shape))

    def both(x, gain):
        return jax.vjp(lambda x, gain: norm(x, gain).astype(jnp.float32), x, gain)

    y, pull = both(x, gain)
    assert norm(x, gain).dtype == jnp.bfloat16
    np.testing.assert_allclose(y, expected(norm, x, gain), rtol=2**-7, atol=2e-3)
    _, pull_wide = both(x.astype(jnp.float32), gain)
    rounded = cotangent.astype(jnp.bfloat16).astype(jnp.float32)
    for own, other in zip(pull(rounded), pull_wide(rounded), strict=True):
        scale = np.abs(np.asarray(other)).max()
        np.testing.assert_allclose(np.asarray(own, np.float32), other, rtol=2**-7, atol=0.01 * scale)


@both
@pytest.mark.parametrize("affine", ["none", "gain", "bias", "gain and bias"])
@pytest.mark.parametrize("epsilon", [None, 0.3])
@pytest.mark.parametrize("batch", [(), (B, T)])
def test_equals_the_equation(norm, affine, epsilon, batch):
    x, gain, bias = numbers(*batch, D)
    gain, bias = gain if "gain" in affine else None, bias if "bias" in affine else None
    settings = {} if epsilon is None else {"epsilon": epsilon}
    result = norm(*float32(x, gain, bias), **settings)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected(norm, x, gain, bias, epsilon), atol=3e-6)


@both
def test_epsilon_may_be_traced(norm):
    (x,) = float32(numbers(T, D)[0])
    result = jax.vmap(lambda epsilon: norm(x, epsilon=epsilon))(jnp.array([0.1, 0.7]))
    np.testing.assert_allclose(result, [expected(norm, x, epsilon=e) for e in (0.1, 0.7)], atol=3e-6)


@both
def test_gradients_equal_finite_differences_of_the_equation(norm):
    inputs = dict(zip(("x", "gain", "bias"), numbers(T, D), strict=True)) | {"epsilon": np.float64(0.3)}
    random = np.random.default_rng(1)
    cotangent = random.normal(size=(T, D))
    with jax.enable_x64(True):
        grads = jax.grad(lambda inputs: (cotangent * norm(**inputs)).sum())(jax.tree.map(jnp.asarray, inputs))
        grads = jax.device_get(grads)
    for name, x in inputs.items():
        direction = random.normal(size=x.shape)
        ahead, behind = (
            (cotangent * expected(norm, **inputs | {name: x + h * direction})).sum() for h in (1e-6, -1e-6)
        )
        np.testing.assert_allclose((grads[name] * direction).sum(), (ahead - behind) / 2e-6, rtol=1e-7, atol=1e-8)


@pytest.mark.every(2, "long")
@pytest.mark.every(3)
@both
def test_derivatives_of_both_modes_and_orders_agree(norm):
    x = jnp.asarray(numbers(D)[0])

    def cubed(x, epsilon):
        return (norm(x, epsilon=epsilon) ** 3).sum()

    for argument in (0, 1):
        reverse, forward = jax.grad(cubed, argument), jax.jacfwd(cubed, argument)
        np.testing.assert_allclose(forward(x, 0.3), reverse(x, 0.3), rtol=1e-4, atol=1e-5)
        second = jax.jacfwd(reverse, argument)(x, 0.3)
        np.testing.assert_allclose(jax.jacrev(reverse, argument)(x, 0.3), second, rtol=1e-4, atol=1e-5)
    near = jax.grad(cubed)(x + 1e-3, 0.3) - jax.grad(cubed)(x - 1e-3, 0.3)
    along = jax.jacfwd(jax.grad(cubed))(x, 0.3) @ jnp.ones(D)
    np.testing.assert_allclose(near / 2e-3, along, rtol=2e-2, atol=2e-2)


def test_layer_norm_is_invariant_to_shift_and_scale():
    (x,) = float32(numbers(T, D)[0])
    y = layer_norm(x, epsilon=0.0)
    np.testing.assert_allclose(np.mean(y, -1), 0, atol=1e-6)
    np.testing.assert_allclose(np.var(y, -1), 1, atol=1e-5)
    np.testing.assert_allclose(layer_norm(8 * x + 3, epsilon=0.0), y, atol=1e-5)


def test_rms_norm_is_invariant_to_scale_but_not_to_shift():
    (x,) = float32(numbers(T, D)[0])
    y = rms_norm(x, epsilon=0.0)
    np.testing.assert_allclose(np.square(y).mean(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(rms_norm(8 * x, epsilon=0.0), y)
    assert (np.abs(np.mean(y, -1)) > 1e-2).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
def test_layer_norm_of_a_constant_row_is_its_bias_with_finite_gradient(value):
    _, gain, bias = float32(*numbers(D))
    x = jnp.full((D,), value, jnp.float32)
    y, pull = jax.vjp(functools.partial(layer_norm, gain=gain, bias=bias), x)
    np.testing.assert_allclose(y, bias, atol=1e-3)
    assert np.isfinite(pull(jnp.ones(D))[0]).all()


def test_rms_norm_of_a_zero_row_is_zero_with_finite_gradient():
    y, pull = jax.vjp(rms_norm, jnp.zeros(D))
    np.testing.assert_array_equal(y, np.zeros(D))
    np.testing.assert_allclose(pull(jnp.ones(D))[0], np.full(D, 1e3), rtol=1e-5)


@both
def test_a_row_does_not_depend_on_other_rows(norm):
    (x,) = float32(numbers(T, D)[0])
    changed = norm(x.at[3].multiply(-5.0))
    assert (changed != norm(x)).any(-1).tolist() == [False, False, False, True, False]


@both
def test_bfloat16_statistics_are_float32(norm):
    """In bfloat16, sums of numbers near 100 and their variance would be inaccurate."""
    x = jnp.asarray(np.random.default_rng(0).normal(100, 3, (3, 1021)), jnp.bfloat16)
    result = norm(x)
    assert result.dtype == jnp.bfloat16
    exact = expected(norm, x.astype(jnp.float32))
    # Half a unit in the last place: 8 significant bits.
    np.testing.assert_allclose(result.astype(jnp.float32), exact, rtol=2.0**-8 + 1e-4, atol=1e-4)


@both
def test_a_norm_of_bfloat16_with_float32_weights_is_bfloat16(norm):
    x, gain, bias = float32(*numbers(T, D))
    result = norm(x.astype(jnp.bfloat16), gain, bias)
    assert result.dtype == jnp.bfloat16
    exact = expected(norm, x.astype(jnp.bfloat16).astype(jnp.float32), np.asarray(gain), np.asarray(bias))
    np.testing.assert_allclose(result.astype(jnp.float32), exact, rtol=2.0**-8 + 1e-4, atol=1e-5)
