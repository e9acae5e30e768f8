"""Arguments of a model beside its weights and inputs, and the checks of them."""

from typing import TypedDict

from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.nn.masks import Mask
from flaxformer.struct import UserError, did_you_mean


class PrefixInputs(TypedDict, total=False):
    """Inputs of a call that stay the same from token to token of a continuation."""

    source: Array | None
    """Input of the encoder, for a config with one."""
    source_valid: Bool[Array, "*batch S"] | None
    memory: Float[Array, "*batch S D"] | None
    """Input of cross-attention, for a config with `d_memory` and no encoder; or an encoder's output, to reuse it."""
    memory_valid: Bool[Array, "*batch S"] | None


class ForwardInputs(PrefixInputs, total=False):
    """The keyword arguments of `apply`; each may be left out."""

    valid: Bool[Array, "*batch T"] | None
    """False at padding, which no token attends to and no statistic counts."""
    positions: Int[Array, "*batch T"] | None
    """Each token's position; 0, 1, 2 … when left out."""
    mask: Mask | None
    """A further mask of self-attention, such as `Segments`."""
    prefix: Int[Array, "*batch"] | None
    """Number of tokens at the start that all tokens see, where the config's mask_pattern is "prefix"."""
    token_types: Int[Array, "*batch T"] | None
    """Each token's kind, for `Tokens(token_types=…)`; 0 when left out."""


def check_inputs(config: ModelConfig, given: ForwardInputs) -> None:
    """Refuse an argument that no model takes, and a mask that a mixer would ignore."""
    for name in given:
        if name not in ForwardInputs.__annotations__:
            raise TypeError(f"no model is given '{name}'{did_you_mean(name, list(ForwardInputs.__annotations__))}")
    if given.get("mask") is not None:
        for path, mixer in config.mixers_without_mask.items():
            raise UserError(f"mask is given, and {path} is {type(mixer).__name__}, which reads no mask; expected None")


def check_memory(config: ModelConfig, given: ForwardInputs) -> None:
    """Refuse a source or a memory that the model does not read, and the absence of what it reads."""
    found = [name for name in PrefixInputs.__annotations__ if given.get(name) is not None]
    is_read = bool({"memory", "source"} & {*found}) if config.reads_memory else bool(found)
    if is_read != config.reads_memory or ("source" in found and not config.encoder):
        wanted = "a source, or a memory" if config.encoder else "a memory" if config.reads_memory else "neither"
        raise ValueError(f"the config needs {wanted}, to attend to; given is {found}")
