"""Activation functions by name; to add one, add a line to `ACTIVATIONS`."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.nn.element_pairs import has_pairs, join_pairs, split_pairs
from flaxformer.nn.widen import widen


def _rounded_once(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the function computed in float32 or wider, whose result has the dtype of its argument."""

    @functools.wraps(function)
    def compute(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        if has_pairs(x):
            return _of_pairs(function, x)
        return function(widen(x)).astype(x.dtype)

    return compute


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_pairs(function: Callable[[Array], Array], x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """Return function(x) for x in bfloat16 on a GPU; only x is stored for the derivative."""
    even, odd = split_pairs(x)
    return join_pairs(function(even), function(odd))


def _of_pairs_backward(function: Callable[[Array], Array], x: Array, gradient: Array) -> tuple[Array]:
    def one(x: Array, gradient: Array) -> Array:
        return gradient * jax.jvp(function, (x,), (jnp.ones_like(x),))[1]

    return (join_pairs(*map(one, split_pairs(x), split_pairs(gradient))),)


_of_pairs.defvjp(lambda function, x: (_of_pairs(function, x), x), _of_pairs_backward)


@jax.checkpoint  # the backward pass stores only x, which halves its memory and costs no time on a CPU
@_rounded_once
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return x Φ(x) = x/2 · (1 + erf(x/√2)), with the standard normal distribution function Φ.

    `jax.nn.gelu` uses erfc, which is more precise where the result is close to 0, and three times as slow.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


@jax.checkpoint  # as for gelu
@_rounded_once
def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), an approximation of x Φ(x) (GPT-2).

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "relu": jax.nn.relu,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": _rounded_once(lambda x: x * jax.nn.sigmoid(1.702 * x)),
    "silu": _rounded_once(jax.nn.silu),
    "tanh": _rounded_once(jnp.tanh),
    "sigmoid": _rounded_once(jax.nn.sigmoid),
}
"""All are computed in float32 or wider, and rounded once to the dtype of x."""
