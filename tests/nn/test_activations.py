"""Activations against their definitions with the scalar functions of the standard library."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.activations import ACTIVATIONS

X = np.array([-30.0, -3.1, -1.0, -0.2, 0.0, 0.3, 1.0, 2.7, 30.0])


def logistic(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


DEFINITIONS = {
    "linear": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "squared_relu": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x * logistic(1.702 * x),
    "silu": lambda x: x * logistic(x),
    "tanh": math.tanh,
    "sigmoid": logistic,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "squared_leaky_relu": lambda x: (x if x > 0 else 0.5 * x) ** 2,
}


def test_every_activation_has_a_definition():
    assert list(ACTIVATIONS) == list(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_equals_its_definition(name):
    result = ACTIVATIONS[name](jnp.asarray(X, jnp.float32))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, [DEFINITIONS[name](float(x)) for x in X], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_derivative_equals_finite_differences(name):
    smooth = X[X != 0]  # relu has no derivative at 0
    slopes = [(DEFINITIONS[name](float(x) + 1e-5) - DEFINITIONS[name](float(x) - 1e-5)) / 2e-5 for x in smooth]
    derivative = jax.jit(jax.vmap(jax.grad(ACTIVATIONS[name])))(jnp.asarray(smooth, jnp.float32))
    np.testing.assert_allclose(derivative, slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_half_precision_is_rounded_once(name, dtype):
    x, activation = jnp.linspace(-4, 4, 257).astype(dtype), ACTIVATIONS[name]
    assert activation(x).dtype == dtype
    np.testing.assert_array_equal(activation(x), activation(x.astype(jnp.float32)).astype(dtype))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_backward_pass_of_a_gelu_stores_only_its_argument(name):
    x = jnp.linspace(-1, 1, 15).reshape(3, 5)
    _, backward = jax.vjp(ACTIVATIONS[name], x)
    [kept] = jax.tree.leaves(backward)
    np.testing.assert_array_equal(kept, x)
