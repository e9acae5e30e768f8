"""Embedding of inputs and positions: the start of the residual stream."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.system.errors import UserError


def embed(
    weights: Parameters,
    position_weights: Parameters,
    config: ModelConfig,
    inputs: Array,
    positions: Int[Array, "*batch T"] | None,
    token_types: Int[Array, "*batch T"] | None = None,
    table: Float[Array, "V D"] | None = None,
) -> tuple[Float[Array, "*batch T D"], Int[Array, "*#batch T"]]:
    """Return X_t = E[token_t] + position_t, and the positions.

    Args:
      inputs: tokens [*batch, T], vectors [*batch, T, width] or images [*batch, height, width, channels].
      positions: position of each token; None for 0, 1, 2 ….
      token_types: type of each token; None for type 0.
      table: embedding table of the decoder, for an encoder that shares it.

    Raises:
      UserError: no token, or a position beyond the model's `max_length`, where indexing would clamp silently.
      ValueError: inputs of the wrong type or width.
    """
    x = config.embedding.apply(weights, inputs, token_types, table, config.sizes)
    dtype = x.dtype
    length = x.shape[-2]
    positions = jnp.arange(length) if positions is None else positions
    _check_range(config, length, positions)
    added = config.positions.encode(position_weights, positions, config.d_model)
    if config.positions.width:
        index = getattr(config.positions, "scale", 1.0) * positions[..., None].astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(index, (*x.shape[:-1], 1)), x], axis=-1)
    x = x if added is None else x + jnp.expand_dims(added, range(x.ndim - added.ndim))
    return x.astype(dtype), positions


def _check_range(config: ModelConfig, length: int, positions: Int[Array, "*batch T"]) -> None:
    """Check that there is a token, and that positions are below `max_length`; traced ones cannot be checked."""
    longest = config.max_length
    if not length:
        raise UserError("sequence length is 0; expected at least one token")
    if longest is not None and length > longest:
        raise UserError(f"sequence length is {length}; expected at most max_length {longest}")
    if longest is not None and not isinstance(positions, jax.core.Tracer) and positions.max(initial=0) >= longest:
        raise UserError(f"a position is {positions.max()}; expected positions below max_length {longest}")
