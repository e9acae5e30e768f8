"""Dropout, with the same mask for an example in whatever part of its batch it is computed."""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Bool, Float, Int, UInt


def dropout(
    key: Array | None,
    rate: float | Array | None,
    x: Float[Array, "..."],
    rows: Int[Array, " B"] | None = None,
) -> Float[Array, "..."]:
    """Set each entry to 0 with probability `rate` and divide the others by 1 − rate; without key or rate, return x.

    Args:
      key: random key of the whole batch.
      x: the whole batch, or examples [B, ...] of it.
      rows: index of each example in the batch; None if x is the whole batch. With them, the mask is, bit for bit, that
        of the whole batch at these rows. Keys of other generators than Threefry have another mask for each part.

    Source: Srivastava et al. 2014.
    """
    if key is None or rate is None:
        return x
    keep = jnp.float32(1 - rate)
    if rows is None:
        mask = jax.random.bernoulli(key, keep, x.shape)
    elif str(jax.random.key_impl(key)) != "threefry2x32" or not jax.threefry_partitionable.value:
        mask = jax.random.bernoulli(part_key(key, rows), keep, x.shape)
    else:
        mask = bernoulli_rows(key, keep, x.shape, rows)
    return jnp.where(mask, x / (1 - rate), 0).astype(x.dtype)


def part_key(key: Array, rows: Int[Array, " B"] | None) -> Array:
    """Return a random key for a part of a batch, in which `rows` are its examples; for the whole batch, the key."""
    return key if rows is None else jax.random.fold_in(key, rows[0])


def bernoulli_rows(
    key: Array, p: Float[Array, ""], shape: tuple[int, ...], rows: Int[Array, " B"]
) -> Bool[Array, "B ..."]:
    """Return the rows of `jax.random.bernoulli(key, p, whole)`, where `whole` has any number of rows of this shape.

    Bit i of JAX's stream is Threefry(key, i), with i as two words of 32 bits. Row r of a batch whose rows have n
    entries begins at i = r n, so that no other row has to be drawn (Salmon et al. 2011).
    """
    size = math.prod(shape[1:])
    within = jnp.arange(size, dtype=jnp.uint32).reshape(1, *shape[1:])
    start_high, start_low = (word.reshape(-1, *[1] * (len(shape) - 1)) for word in multiply_wide(rows, size))
    low = start_low + within
    high = start_high + (low < start_low)  # the carry
    first, second = jax.random.key_data(key)
    bits = jnp.bitwise_xor(*threefry2x32_p.bind(first, second, jnp.broadcast_to(high, low.shape), low))
    return jax.lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32) - 1 < p


def multiply_wide(rows: Int[Array, " B"], size: int) -> tuple[UInt[Array, " B"], UInt[Array, " B"]]:
    """Return the high and the low word of rows · size, where both are below 2³²; JAX has no integers of 64 bits."""
    low_half, shift = jnp.uint32(0xFFFF), jnp.uint32(16)
    r_low, r_high = rows.astype(jnp.uint32) & low_half, rows.astype(jnp.uint32) >> shift
    n_low, n_high = jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)
    middle = r_high * n_low + ((r_low * n_low) >> shift)  # below 2³²
    rest = (middle & low_half) + r_low * n_high
    return r_high * n_high + (middle >> shift) + (rest >> shift), (rest << shift) | ((r_low * n_low) & low_half)
