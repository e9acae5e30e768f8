"""What a model is given beside its weights and inputs."""

from typing import TypedDict

from jaxtyping import Array, Bool, Float, Int

from flaxformer.nn.masks import Mask


class Read(TypedDict, total=False):
    """What of `Given` stays the same from token to token of a continuation."""

    source: Array | None
    """What the encoder reads, for a config with one."""
    source_valid: Bool[Array, "*batch S"] | None
    memory: Float[Array, "*batch S D"] | None
    """What cross-attention reads, for a config with `d_memory` and no encoder; or an encoder's output, to reuse it."""
    memory_valid: Bool[Array, "*batch S"] | None


class Given(Read, total=False):
    """The keyword arguments of `apply`; each may be left out."""

    valid: Bool[Array, "*batch T"] | None
    """False at padding, which no token attends to and no statistic counts."""
    positions: Int[Array, "*batch T"] | None
    """Each token's position; 0, 1, 2 … when left out."""
    mask: Mask | None
    """A further mask of self-attention, such as `Segments`."""
    prefix: Int[Array, "*batch"] | None
    """How many tokens at the start all tokens see, where the config's visibility is "prefix"."""
    token_types: Int[Array, "*batch T"] | None
    """Each token's kind, for `Tokens(token_types=…)`; 0 when left out."""
