"""Comparison of a token mixer with a loop over its equation, written in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from mechanisms import weights_of

from flaxformer import Context
from flaxformer.components.component import with_aux

T, D = 7, 6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.log1p(np.exp(x))


def rms(x, epsilon=1e-6):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)


def layer_normal(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def unit(x, epsilon=1e-6):
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) + epsilon)


def into(x, matrix):
    """x W for one axis of x and any axes of W."""
    return np.tensordot(x, matrix, 1)


def convolved(x, kernel):
    """Σ_i w_i ⊙ x_{t−i}, with the last row of the kernel for the token itself."""
    width = len(kernel)
    return np.stack([sum(kernel[width - 1 - i] * x[t - i] for i in range(width) if t - i >= 0) for t in range(len(x))])


def assert_equals(component, reference, scale=0.5, **carried):
    """Hold that output, gradients, and the output token by token are those of `reference(weights, x)`."""
    dice = np.random.default_rng(1)
    weights = jax.tree.map(lambda w: scale * w, weights_of(component, D))
    x, direction_of_y = dice.standard_normal((T, D)), dice.standard_normal((T, D))
    expected = reference(weights, x)
    context = {"carried": {}, "layer": 1, "mask": None} | carried

    def part_of(start, stop):
        positions = jnp.arange(start, stop)
        values = {name: jnp.asarray(value[start:stop]) for name, value in context["carried"].items()}
        return Context(
            query_positions=positions,
            key_positions=jnp.arange(stop),
            layer=context["layer"],
            carried=values,
            mask=context["mask"],
        )

    def projected(weights, x):
        y = with_aux(component.apply(weights, x, part_of(0, T)))[0]
        return (y * direction_of_y).sum(), y

    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, (weights, x))
        (_, y), gradients = jax.jit(jax.value_and_grad(projected, argnums=(0, 1), has_aux=True))(*arrays)
        np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)
        state, pieces = component.init_state(arrays[0], (), T, jnp.float64), []
        step = jax.jit(component.step)
        in_parts = component.has_state and context["mask"] is None  # the laws decode attention, whose state has a mask
        for start, stop in ((0, 3), (3, 4), (4, 5), (5, T)) if in_parts else ():
            result, state = step(arrays[0], arrays[1][start:stop], state, part_of(start, stop))
            pieces.append(with_aux(result)[0])
        if in_parts:
            np.testing.assert_allclose(jnp.concatenate(pieces), expected, rtol=1e-9, atol=1e-12)

    gradients = jax.tree.map(np.asarray, gradients)
    leaves, tree = jax.tree.flatten((weights, x))
    for index, (leaf, gradient) in enumerate(zip(leaves, jax.tree.leaves(gradients), strict=True)):
        direction = dice.standard_normal(leaf.shape)

        def along(size, index=index, direction=direction):
            moved = [w + size * direction if i == index else w for i, w in enumerate(leaves)]
            return (reference(*jax.tree.unflatten(tree, moved)) * direction_of_y).sum()

        numeric = (8 * (along(1e-4) - along(-1e-4)) - (along(2e-4) - along(-2e-4))) / 12e-4
        np.testing.assert_allclose((gradient * direction).sum(), numeric, rtol=1e-5, atol=1e-8)
