"""What a model is given beside its weights and inputs, and what of it every block of a stack needs."""

from typing import TypedDict

import flax.struct
from jaxtyping import Array, Bool, Float, Int

from flaxformer.nn.masks import Mask
from flaxformer.pytree import Node


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


class Call(Node):
    """What all blocks of a stack share in one call."""

    query_positions: Int[Array, "*batch T"]
    key_positions: Int[Array, "*batch S"]
    mask: Mask | None = None
    bias: Float[Array, "*batch N T S"] | None = None
    memory: Float[Array, "*batch M D"] | None = None
    memory_mask: Mask | None = None
    valid: Bool[Array, "*batch T"] | None = None
    offset: Int[Array, ""] | None = None
    """Slots of a cache that are written already; None without a cache."""
    training: bool = flax.struct.field(pytree_node=False, default=False)
    weights: bool = flax.struct.field(pytree_node=False, default=False)
    """Whether to hand back attention's logits and weights, and who may attend to whom."""
