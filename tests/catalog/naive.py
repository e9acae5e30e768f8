"""Attention in NumPy, one query, key and head at a time, and comparisons of outputs and gradients with such loops."""

import jax
import jax.numpy as jnp
import numpy as np
from mechanisms import applied

from flaxformer.nn import Causal

T, D, N = 7, 8, 2


def sequence(width=D):
    """A sequence of random tokens."""
    return np.random.default_rng(1).standard_normal((T, width))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    exponentials = np.exp(np.asarray(x) - np.max(x))
    return exponentials / exponentials.sum()


def rms_norm(x, epsilon=1e-6):
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + epsilon)


def projected(weights, x, name):
    """Queries, keys or values [T, heads, width]."""
    matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
    return np.array([[x[t] @ matrix[:, head] + bias[head] for head in range(matrix.shape[1])] for t in range(len(x))])


def attention_loop(weights, x, logit=None, query=None, key=None, value=None):
    """Heads [T, N, d_v] of causal attention.

    logit: of queries q and keys k, for (t, s, head); by default q_t · k_s / √d.
    query, key, value: in place of the plain ones.
    """
    query = projected(weights, x, "query") if query is None else query
    key = projected(weights, x, "key") if key is None else key
    value = projected(weights, x, "value") if value is None else value
    heads, group = query.shape[1], query.shape[1] // key.shape[1]
    mixed = np.zeros((len(x), heads, value.shape[-1]))
    for t in range(len(x)):
        for head in range(heads):
            k, v = key[:, head // group], value[:, head // group]
            logits = [
                query[t, head] @ k[s] / np.sqrt(query.shape[-1]) + (0 if logit is None else logit(t, s, head))
                for s in range(t + 1)
            ]
            mixed[t, head] = softmax(logits) @ v[: t + 1]
    return mixed


def output(weights, heads):
    """The heads of all tokens times W_O, summed over the heads."""
    return sum(heads[:, head] @ weights.out[head] for head in range(heads.shape[1])) + weights.out_bias


def differences(expected, trees, direction, step=1e-6):
    """Central difference of a function of trees along a direction."""
    ahead, behind = (
        jax.tree.map(lambda x, d, length=length: x + length * d, trees, direction) for length in (step, -step)
    )
    return (expected(*ahead) - expected(*behind)) / (2 * step)


def random_like(trees, dice):
    """Random numbers of the shapes of trees."""
    return jax.tree.map(lambda x: dice.standard_normal(np.shape(x)), trees)


def assert_gradients(function, expected, trees):
    """Compare the gradients of a JAX function of trees with differences of a NumPy function, in random directions."""
    with jax.enable_x64(True):
        gradients = jax.jit(jax.grad(function, argnums=tuple(range(len(trees)))))(*jax.tree.map(jnp.asarray, trees))
    for seed in range(3):
        direction = random_like(trees, np.random.default_rng(seed))
        products = jax.tree.map(lambda g, d: (np.asarray(g) * d).sum(), gradients, direction)
        found = sum(jax.tree.leaves(products))
        np.testing.assert_allclose(found, differences(expected, trees, direction), rtol=1e-5, atol=1e-8)


def assert_attention(component, loop, weights, x, **context):
    """Compare the update of a mixer in causal attention, and its gradients, with a loop over (weights, x)."""
    context = {"mask": Causal()} | context
    found, _ = applied(component, weights, x, **context)
    np.testing.assert_allclose(found, loop(weights, x), rtol=1e-9, atol=1e-12)
    factors = np.random.default_rng(2).standard_normal(np.shape(found))
    assert_gradients(
        lambda weights, x: (applied(component, weights, x, **context)[0] * factors).sum(),
        lambda weights, x: (loop(weights, x) * factors).sum(),
        (weights, x),
    )
