"""Dropout, with the same mask for an example in whatever part of its batch it is computed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def dropout(
    key: Array | None,
    rate: float | Array | None,
    x: Float[Array, "..."],
    rows: Int[Array, " B"] | None = None,
) -> Float[Array, "..."]:
    """Set each entry to 0 with probability `rate` and divide the others by 1 − rate; without key or rate, return x.

    Each example has a key of its own, which is folded from the key of the batch by the example's index.

    Args:
      key: random key of the whole batch.
      x: the whole batch, or examples [B, ...] of it.
      rows: index of each example in the batch; None if x is the whole batch. With them, the mask is, bit for bit, that
        of the whole batch at these rows. Keys of other generators than Threefry may have another mask for each part.

    Source: Srivastava et al. 2014.
    """
    if key is None or rate is None:
        return x
    rows = jnp.arange(len(x)) if rows is None else rows
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, jnp.float32(1 - rate), x.shape[1:]))(keys)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


def part_key(key: Array, rows: Int[Array, " B"] | None) -> Array:
    """Return a random key for a part of a batch, in which `rows` are its examples; for the whole batch, the key."""
    return key if rows is None else jax.random.fold_in(key, rows[0])
