"""Activation functions by name; to add one, add a line to `ACTIVATIONS`."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.nn.formulations import activations as fast
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.widen import widen


def _rounded_once(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the function computed in float32 or wider, whose result has the dtype of its argument."""

    @functools.wraps(function)
    def compute(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return function(widen(x)).astype(x.dtype)

    return compute


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
    "elu": _rounded_once(jax.nn.elu),
    "selu": _rounded_once(jax.nn.selu),
    "softplus": _rounded_once(jax.nn.softplus),
    "squared_leaky_relu": lambda x: jnp.square(jax.nn.leaky_relu(x, 0.5)),
}
"""All are computed in float32 or wider, and rounded once to the dtype of x."""
_ELEMENTWISE = frozenset(ACTIVATIONS.values())
"""Functions of single elements; one that a user adds may be another."""


def activate(name: str, x: Float[Array, "*batch D"], bias: Float[Array, "D"] | None) -> Float[Array, "*batch D"]:
    """Return f(x + b) for an activation f, where its result is the operand of a matrix product."""
    return activate_sum(ACTIVATIONS[name], x, bias, ACTIVATIONS[name] in _ELEMENTWISE)


@with_formulations("activation", fast.FORMULATIONS)
def activate_sum(
    function: Callable[[Array], Array],
    x: Float[Array, "*batch D"],
    bias: Float[Array, "D"] | None,
    is_elementwise: bool,
) -> Float[Array, "*batch D"]:
    """Return f(x + b), with the sum rounded as x is."""
    return function(x if bias is None else (x + bias.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype))
