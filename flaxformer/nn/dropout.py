"""Dropout: noise in training, the identity in evaluation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropout(key: Array | None, rate: float | Array | None, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Zero each number with probability rate and scale the rest by 1 / (1 − rate); no key or no rate: identity."""
    if key is None or rate is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)
