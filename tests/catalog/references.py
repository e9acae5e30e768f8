"""Equality of a component with an independent loop: values and gradients in double precision."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import Context

dice = np.random.default_rng(3)


def context_of(x, **fields):
    """The context of a sequence [T, D]."""
    positions = jnp.arange(x.shape[-2])
    return Context(query_positions=positions, key_positions=positions, **fields)


def assert_equal(function, reference, *arguments, rtol=1e-9):
    """Compare two functions of trees of arrays, and the gradients of a random sum of their results."""
    with jax.enable_x64(True):
        arguments = jax.tree.map(jnp.asarray, arguments)
        direction = jnp.asarray(dice.standard_normal(jax.eval_shape(function, *arguments).shape))

        def results(of):
            def summed(arguments):
                values = of(*arguments)
                return (values * direction).sum(), values

            return jax.jit(jax.grad(summed, has_aux=True))(arguments)  # one program: operation by operation is slower

        (gradients, values), (expected, expected_values) = results(function), results(reference)
        np.testing.assert_allclose(values, expected_values, rtol=rtol, atol=1e-12)
        for actual, gradient in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(actual, gradient, rtol=rtol, atol=1e-10)


def drawn(**shapes):
    """Random arrays by name."""
    return {name: dice.standard_normal(shape) for name, shape in shapes.items()}


def through(rule, weights, maps, x, layers, branches=2, **fields):
    """The result of a residual rule around branches f(h) = tanh(h W)."""
    stream = rule.begin(x, layers)
    for number, (of_branch, matrix) in enumerate(zip(weights, maps, strict=True)):
        context = context_of(x, layer=number // branches, layers=layers, branch=number % branches, **fields)
        update = jnp.tanh(rule.read(of_branch, stream, context) @ matrix)
        stream = rule.join(of_branch, stream, update, context)
    return rule.end(stream)
