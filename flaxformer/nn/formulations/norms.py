"""Formulation of the standardised vectors of `nn.norms`, whose derivative stores less on accelerators."""

import functools

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flaxformer.nn.formulations import ACCELERATORS, Formulation
from flaxformer.nn.widen import widen


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _standardise(
    x: Float[Array, "*batch D"], epsilon: float | Array, centre: bool, in_one_pass: bool
) -> Float[Array, "*batch D"]:
    """Return n, with dn = r (dx − mean(dx) − n mean(n dx)) − n r² dε / 2, without mean(dx) unless `centre`.

    Args:
      in_one_pass: True to compute σ² in the derivative as mean(x²) − μ².
    """
    centred = x - x.mean(-1, keepdims=True) if centre else x
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)


def _derivative(
    centre: bool,
    in_one_pass: bool,
    primals: tuple[Array, float | Array],
    tangents: tuple[Array | SymbolicZero, Array | SymbolicZero],
) -> tuple[Array, Array]:
    (x, epsilon), (dx, d_epsilon) = primals, tangents
    mean = x.mean(-1, keepdims=True) if centre else None
    if mean is not None and in_one_pass:
        variance = jnp.maximum(jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean), 0)
    else:
        variance = jnp.square(x if mean is None else x - mean).mean(-1, keepdims=True)
    # Without the barrier, a GPU stores n · dy in float32 for the gradient of the gain.
    mean, inverse = jax.lax.optimization_barrier((mean, jax.lax.rsqrt(variance + epsilon)))
    normal = (x if mean is None else x - mean) * inverse
    change = jnp.zeros_like(normal)
    if not isinstance(dx, SymbolicZero):
        across = dx - dx.mean(-1, keepdims=True) if centre else dx
        change = inverse * (across - normal * (normal * dx).mean(-1, keepdims=True))
    if not isinstance(d_epsilon, SymbolicZero):
        change = change - normal * jnp.square(inverse) * d_epsilon / 2
    return normal, change


_standardise.defjvp(_derivative, symbolic_zeros=True)

FORMULATIONS = {
    "one pass": Formulation(
        lambda x, epsilon, centre: _standardise(widen(x), epsilon, centre, True),
        # In float32, σ² errs by about 2⁻²³ μ²; the rounding of x to bfloat16 has added about 2⁻²⁰ μ² to it.
        gain="as the short derivative, which reads x once: 1.004 × tokens/s of GPT-2 on an H200 (bench formulations)",
        platforms=ACCELERATORS,
        unsupported_reason=lambda x, epsilon, centre: None if x.dtype == jnp.bfloat16 else "x is not in bfloat16",
    ),
    "short derivative": Formulation(
        lambda x, epsilon, centre: _standardise(widen(x), epsilon, centre, False),
        # XLA for CPUs computes the gradient of a residual stream as one sum over all later layers, again in each layer.
        # With this derivative, each term of that sum costs more: 12 layers take 1.13 × the time.
        gain="stores x and two numbers per token for the backward pass",
        platforms=ACCELERATORS,
    ),
}
