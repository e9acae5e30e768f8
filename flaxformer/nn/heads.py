"""Layout of multi-head arrays: heads before positions, query heads grouped by key-value head, masks broadcast."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from flaxformer.nn.masks import Mask


def logits_shape(query: Array, key: Array) -> tuple[int, ...]:
    """[..., N, T, S], the shape of the logits."""
    *batch, T, N, _ = query.shape
    return (*batch, N, T, key.shape[-3])


def as_booleans(mask: Mask | Array | np.ndarray | None, full: tuple[int, ...]) -> Array | None:
    """The mask as booleans of the rank of `full`, [..., N, T, S]."""
    mask = mask.matrix(*full[-2:]) if isinstance(mask, Mask) else mask
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"mask has dtype {mask.dtype}; expected bool, True = attend (numbers belong in bias)")
    return None if mask is None else with_rank(jnp.asarray(mask), len(full))


def heads_first(x: Float[Array, "*batch length heads d"]) -> Float[Array, "B heads length d"]:
    """Leading axes flattened into one, and heads before positions."""
    return jnp.swapaxes(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]), 1, 2)


def group_heads(x: Shaped[Array, "B N T d"], key_value_heads: int) -> Shaped[Array, "B K G T d"]:
    """Query heads, grouped by the key-value head that they share."""
    return x.reshape(x.shape[0], key_value_heads, x.shape[1] // key_value_heads, *x.shape[2:])


def broadcast_grouped(x: Array | None, full: tuple[int, ...], key_value_heads: int) -> Array | None:
    """A mask or bias, broadcast to [B, K, G, T, S]."""
    if x is None:
        return None
    x = jnp.broadcast_to(with_rank(x, len(full)), full)
    return group_heads(x.reshape(math.prod(full[:-3]), *full[-3:]), key_value_heads)


def heads_last(mixed: Float[Array, "B K G T d_v"], shape: tuple[int, ...]) -> Float[Array, "*batch T N d_v"]:
    """The inverse of `heads_first` and `grouped`, for shape [*batch, T, N]."""
    *batch, T, N = shape
    return jnp.swapaxes(mixed.reshape(math.prod(batch), N, T, mixed.shape[-1]), 1, 2).reshape(*shape, mixed.shape[-1])


def unpack_rows(x: Float[Array, "rows length d"], batch: tuple[int, ...]) -> Float[Array, "*batch length K d"]:
    """Return rows, one per sequence and key-value head, as [*batch, length, K, d]."""
    return jnp.swapaxes(x.reshape(*batch, -1, *x.shape[-2:]), -3, -2)


def with_rank(x: Array, rank: int) -> Array:
    """Prepend axes of size 1 up to this rank."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def broadcast_logits(x: Shaped[Array, "..."], full: tuple[int, ...]) -> Shaped[Array, "*batch N T S"]:
    """Logits or a mask, broadcast to the shape `full`, [*batch, N, T, S]."""
    return jnp.broadcast_to(with_rank(x, len(full)), full)


def without_unreachable(mask: Array, *keys_or_values: Float[Array, "*batch S K _"]) -> tuple[Array, ...]:
    """Zero the keys and values that no query of their heads attends to: there, a NaN times a weight of 0 is a NaN."""
    *batch, N, T, S = mask.shape
    K = 1 if N == 1 else keys_or_values[0].shape[-2]
    read = mask.reshape(*batch, K, N // K, T, S).any((-3, -2))
    reachable = jnp.swapaxes(read, -1, -2)[..., None]
    return tuple(jnp.where(reachable, x, 0) for x in keys_or_values)
