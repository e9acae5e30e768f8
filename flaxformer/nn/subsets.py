"""Some of the tokens of a sequence, by their places, and what belongs to pairs of them."""

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from flaxformer.system.errors import UserError


def take_tokens(x: Shaped[Array, "*#batch T"], index: Int[Array, "*batch n"], length: int) -> Shaped[Array, "*batch n"]:
    """Return x[index] along the axis of `length` tokens."""
    return jnp.take_along_axis(jnp.broadcast_to(x, (*index.shape[:-1], length)), index, axis=-1)


def take_pairs(x: Shaped[Array, "..."], index: Int[Array, "*batch n"], length: int) -> Shaped[Array, "*batch N n n"]:
    """Return x[index, index] of a matrix [T, T] or [*batch, N, T, T] over pairs of tokens."""
    heads = x.shape[-3] if x.ndim > 2 else 1
    x = jnp.broadcast_to(x, (*index.shape[:-1], heads, length, length))
    x = jnp.take_along_axis(x, index[..., None, :, None], axis=-2)
    return jnp.take_along_axis(x, index[..., None, None, :], axis=-1)


def length_of_sequence(query_positions: Array, key_positions: Array) -> int:
    """Return the number of tokens of a whole sequence.

    Raises:
      UserError: the keys are those of a decoding state.
    """
    queries, keys = query_positions.shape[-1], key_positions.shape[-1]
    if queries != keys:
        raise UserError(
            f"Context.take is called for {queries} tokens with a state of {keys}; expected whole sequences: without "
            "init_state and step, a component reads all tokens again in decoding"
        )
    return keys
