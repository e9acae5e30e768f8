"""Precision of sums and of functions of numbers of 16 bits."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def widen(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return x in float32, or in its own type if that is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
