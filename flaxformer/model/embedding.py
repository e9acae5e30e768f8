"""What turns tokens, vectors or images into the vectors of the stream."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.config import Patches, Stream, Tokens, Vectors
from flaxformer.config.base import SequenceModel
from flaxformer.nn.linear import linear
from flaxformer.params import Parameters, param


class Embedding(Parameters):
    """A row a token, or a matrix; a row a position where positions are learned."""

    tokens: Float[Array, "vocabulary d_embedding"] | None = param(
        init="embedding", decay=False, trained="inputs.trained", when="inputs.has_table"
    )
    types: Float[Array, "token_types d_embedding"] | None = param(
        init="embedding", decay=False, when="inputs.has_types"
    )
    matrix: Float[Array, "d_input d_embedding"] | None = param(fan_in="d_input", when="inputs.has_matrix")
    matrix_bias: Float[Array, "d_embedding"] | None = param(init="zeros", decay=False, when="inputs.has_matrix")
    class_token: Float[Array, "d_embedding"] | None = param(
        init="embedding", decay=False, when="inputs.has_class_token"
    )
    positions: Float[Array, "max_length d_model"] | None = param(
        init="positions", decay=False, when="positions.learned"
    )


def embed(
    params: Embedding,
    config: SequenceModel,
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
    x = _content(params, config, inputs, token_types, table)
    dtype = x.dtype
    length = x.shape[-2]
    positions = jnp.arange(length) if positions is None else positions
    _check_range(config, length, positions)
    if params.positions is not None:
        added = params.positions[positions]
    else:
        added = config.positions.encode(positions, config.d_model)
    if config.positions.width:
        index = config.positions.scale * positions[..., None].astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(index, (*x.shape[:-1], 1)), x], axis=-1)
    x = x if added is None else x + jnp.expand_dims(added, range(x.ndim - added.ndim))
    return x.astype(dtype), positions


def _check_range(config: SequenceModel, length: int, positions: Int[Array, "*batch T"]) -> None:
    """Refuse what is beyond the model's last position; positions that are traced are the caller's to check."""
    longest = config.max_length
    if longest is not None and length > longest:
        raise ValueError(f"sequence length is {length}; expected at most max_length {longest}")
    if longest is not None and not isinstance(positions, jax.core.Tracer) and positions.max(initial=0) >= longest:
        raise ValueError(f"a position is {positions.max()}; expected numbers below max_length {longest}")


def _content(
    params: Embedding, config: SequenceModel, inputs: Array, token_types: Array | None, table: Array | None
) -> Float[Array, "*batch T d_embedding"]:
    """The vectors before any position."""
    kind = config.inputs
    if isinstance(kind, Tokens):
        return _token_vectors(params, kind, config.d_model, inputs, token_types, table)
    if isinstance(kind, Vectors | Stream):
        width = kind.d_input or config.sizes["d_embedding"]
        if inputs.shape[-1] != width:
            raise ValueError(f"inputs are {inputs.shape}; expected vectors of width {width} last")
        return inputs if params.matrix is None else linear(inputs, params.matrix, params.matrix_bias)
    x = linear(patches(inputs, kind), params.matrix, params.matrix_bias)  # type: ignore[arg-type]
    if params.class_token is None:
        return x
    first = jnp.broadcast_to(params.class_token, (*x.shape[:-2], 1, x.shape[-1]))
    return jnp.concatenate([first.astype(x.dtype), x], axis=-2)


def _token_vectors(
    params: Embedding, kind: Tokens, d_model: int, tokens: Array, token_types: Array | None, table: Array | None
) -> Float[Array, "*batch T d_embedding"]:
    table = params.tokens if kind.has_table else table
    if table is None:
        raise ValueError("inputs.shared is True; expected the decoder's embedding table to be given")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(f"inputs have dtype {tokens.dtype}; expected integers, the ids of tokens")
    if kind.lookup == "gather":
        # The gradient of a row is a sum over all its tokens: widened, it is summed in float32.
        x = table.astype(jnp.promote_types(table.dtype, jnp.float32))[tokens].astype(table.dtype)
    else:
        x = jax.nn.one_hot(tokens, table.shape[0], dtype=table.dtype) @ table
    if kind.scale_exponent is not None:
        x = (x * jnp.exp2(kind.scale_exponent * jnp.log2(d_model))).astype(x.dtype)
    if params.types is not None:
        x = (x + params.types[jnp.zeros_like(tokens) if token_types is None else token_types]).astype(x.dtype)
    return x


def patches(images: Float[Array, "*batch H W C"], kind: Patches) -> Float[Array, "*batch T D"]:
    """An image as the sequence of its squares, row by row, each flattened in (row, column, channel) order.

    Source: Dosovitskiy et al. 2021, section 3.1.
    """
    expected = (kind.height, kind.width, kind.channels)
    if images.shape[-3:] != expected:
        raise ValueError(f"images are {images.shape}; expected [..., height, width, channels] with {expected} last")
    batch, size = images.shape[:-3], kind.size
    rows, columns = kind.height // size, kind.width // size
    squares = images.reshape(*batch, rows, size, columns, size, kind.channels)
    return jnp.swapaxes(squares, -4, -3).reshape(*batch, rows * columns, size * size * kind.channels)
