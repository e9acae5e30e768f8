"""Decoding state of a whole model, as a pytree."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from flaxformer.parts.cache import Memory, PackedKV, pad_axis, write
from flaxformer.pytree import Node


class BlockState(Node):
    """Decoding state of one block: the state of its mixer, and the constant keys and values of cross-attention."""

    attention: PyTree
    cross_attention: PackedKV | Memory | None = None


class Cache(Node):
    """Decoding state of a model between two calls. Tokens are appended in order, including padding.

    layers: one `BlockState` per layer, or stacked ones with a leading axis, as in the layout of the weights.
    used: number of tokens so far, including padding.
    count: number of tokens so far per sequence, without padding.
    valid, positions: of each token; None if no mixer reads earlier tokens again, so that the cache has no limit.
    """

    layers: PyTree[BlockState]
    used: Int[Array, ""]
    count: Int[Array, "*batch"]
    valid: Bool[Array, "*batch capacity"] | None
    positions: Int[Array, "*batch capacity"] | None
    memory_valid: Bool[Array, "*batch S"] | None = None

    @property
    def capacity(self) -> int | None:
        """Number of tokens that the cache can hold; None for no limit."""
        return None if self.valid is None else self.valid.shape[-1]

    def pad_to(self, capacity: int) -> "Cache":
        """Return the cache with a larger capacity; without a capacity, return it unchanged."""
        if self.valid is None or self.positions is None:
            return self

        def pad_state(state: PyTree) -> PyTree:
            return state.pad_to(capacity) if hasattr(state, "pad_to") else state

        return self.replace(
            layers=jax.tree.map(pad_state, self.layers, is_leaf=lambda state: hasattr(state, "pad_to")),
            valid=pad_axis(self.valid, capacity, -1),
            positions=pad_axis(self.positions, capacity, -1),
        )

    def advance(self, valid: Bool[Array, "*batch T"]) -> tuple["Cache", Int[Array, "*batch T"]]:
        """Append T tokens; return the cache without their keys and values, and their positions.

        Raises:
          ValueError: more tokens than the capacity, if `used` is not traced.
        """
        length = valid.shape[-1]
        positions = jnp.maximum(self.count[..., None] + jnp.cumsum(valid, axis=-1) - 1, 0)
        after = self.replace(used=self.used + length, count=self.count + valid.sum(-1, dtype=self.count.dtype))
        if self.valid is None or self.positions is None:
            return after, positions
        capacity = self.valid.shape[-1]
        if not isinstance(self.used, jax.core.Tracer) and int(self.used) + length > capacity:
            raise ValueError(f"{int(self.used)} of {capacity} positions are used; {length} more tokens do not fit")
        return after.replace(
            valid=write(self.valid, valid, self.used, axis=-1),
            positions=write(self.positions, positions, self.used, axis=-1),
        ), positions
