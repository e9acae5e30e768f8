"""Embedding of tokens, vectors or images, and their positions, as the vectors of the residual stream."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.config import ModelConfig


def embed(
    weights: Any,
    position_weights: Any,
    config: ModelConfig,
    inputs: Array,
    positions: Int[Array, "*batch T"] | None,
    token_types: Int[Array, "*batch T"] | None = None,
    table: Float[Array, "V D"] | None = None,
) -> tuple[Float[Array, "*batch T D"], Int[Array, "*#batch T"]]:
    """X_t = E[token_t] + position_t, and the positions.

    Args:
      inputs: tokens [*batch, T], vectors [*batch, T, width] or images [*batch, height, width, channels].
      positions: None counts from 0.
      table: the embedding table of the decoder that an encoder shares.

    Raises:
      ValueError: a sequence longer than a learned table, which indexing would otherwise clamp silently; inputs of the
        wrong rank or width.
    """
    x = config.embedding.apply(weights, inputs, token_types, table, config.sizes)
    dtype = x.dtype
    length = x.shape[-2]
    positions = jnp.arange(length) if positions is None else positions
    _check_range(config, length, positions)
    added = config.positions.encode(position_weights, positions, config.d_model)
    scheme: Any = config.positions
    if scheme.width:
        index = scheme.scale * positions[..., None].astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(index, (*x.shape[:-1], 1)), x], axis=-1)
    x = x if added is None else x + jnp.expand_dims(added, range(x.ndim - added.ndim))
    return x.astype(dtype), positions


def _check_range(config: ModelConfig, length: int, positions: Int[Array, "*batch T"]) -> None:
    """Refuse what is beyond the model's last position; positions that are traced are the caller's to check."""
    longest = config.max_length
    if longest is not None and length > longest:
        raise ValueError(f"sequence length is {length}; expected at most max_length {longest}")
    if longest is not None and not isinstance(positions, jax.core.Tracer) and positions.max(initial=0) >= longest:
        raise ValueError(f"a position is {positions.max()}; expected numbers below max_length {longest}")
