"""Keyword arguments of a forward pass, and their validation."""

from typing import TypedDict

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.pytree import Node
from flaxformer.nn.masks import Mask
from flaxformer.nn.positions import token_positions
from flaxformer.system.errors import UserError, did_you_mean


class ArrayIndex(Node):
    """Positions 0, 1, 2 … of the array, padding included; where padding follows the tokens, the same and faster.

    Position schemes then compute one table for all sequences of a batch.
    """


TokenPositions = Int[Array, "*batch T"] | ArrayIndex | None
"""Positions of a call; None counts the tokens that are not padding."""


class PrefixInputs(TypedDict, total=False):
    """Inputs that stay the same while a sequence is continued token by token."""

    source: Array | None
    """Input of the encoder, for a config with one."""
    source_valid: Bool[Array, "*batch S"] | None
    """False at padding of the source."""
    source_positions: TokenPositions
    """Position of each token of the source, as `positions`."""
    memory: Float[Array, "*batch S D"] | None
    """Input of cross-attention: for a config with `d_memory`, or in place of `source` the output of the encoder."""
    memory_valid: Bool[Array, "*batch S"] | None


class ForwardInputs(PrefixInputs, total=False):
    """Keyword arguments of `apply`, all optional."""

    valid: Bool[Array, "*batch T"] | None
    """False at padding, which no token attends to and no statistic includes."""
    positions: TokenPositions
    """Position of each token; by default 0, 1, 2 …, without padding: the number of earlier tokens that are valid."""
    mask: Mask | None
    """Additional mask of self-attention, such as `Segments`."""
    prefix: Int[Array, "*batch"] | None
    """Number of tokens at the start that all tokens attend to, with mask_pattern "prefix"."""
    token_types: Int[Array, "*batch T"] | None
    """Type of each token, for `Tokens(token_types=…)`; by default 0."""


def check_inputs(config: ModelConfig, arguments: ForwardInputs) -> None:
    """Check the names of the arguments, and that all mixers read a given mask.

    Raises:
      TypeError: an unknown argument.
      UserError: a mask that a mixer would ignore.
    """
    for name in arguments:
        if name not in ForwardInputs.__annotations__:
            raise TypeError(
                f"a model has no argument '{name}'{did_you_mean(name, list(ForwardInputs.__annotations__))}"
            )
    if arguments.get("mask") is not None:
        for path, mixer in config.mixers_without_mask.items():
            raise UserError(f"mask is given, and {path} is {type(mixer).__name__}, which reads no mask; expected None")


def check_memory(config: ModelConfig, arguments: ForwardInputs) -> None:
    """Check that source or memory are given if, and only if, the model reads them.

    Raises:
      ValueError: they are given and not read, or the other way round.
    """
    present = [name for name in PrefixInputs.__annotations__ if arguments.get(name) is not None]
    is_read = bool({"memory", "source"} & {*present}) if config.reads_memory else bool(present)
    if is_read != config.reads_memory or ("source" in present and not config.encoder):
        needed = (
            "source or memory" if config.encoder else "memory" if config.reads_memory else "neither source nor memory"
        )
        raise ValueError(f"the model needs {needed}; given are {present}")


def positions_of_call(arguments: ForwardInputs) -> Int[Array, "*batch T"] | None:
    """Return the positions of the tokens of a call; None if they are the indices 0, 1, 2 …."""
    positions, valid = arguments.get("positions"), arguments.get("valid")
    if positions is None and valid is not None:
        return token_positions(jnp.asarray(valid))
    return None if isinstance(positions, ArrayIndex) else positions
