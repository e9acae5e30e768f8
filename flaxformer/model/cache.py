"""Decoding state of a stack, as an explicit pytree."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.parts.cache import Memory, PackedKV, longer, write
from flaxformer.pytree import Node


class BlockState(Node):
    """One block's decoding state: its mixer's, and the keys and values of the memory, which never change."""

    attention: Any
    cross_attention: PackedKV | Memory | None = None


class Cache(Node):
    """A decoder's state between two calls. Positions are filled in order; padding fills them too, and is not valid."""

    layers: Any
    """A `BlockState` per layer, or one with a leading `layers` axis, as the weights are laid out."""
    used: Int[Array, ""]
    count: Int[Array, "*batch"]
    """Tokens so far that are not padding."""
    valid: Bool[Array, "*batch capacity"] | None
    """None, as `positions`, where no mixer reads earlier tokens again: such a cache has no limit."""
    positions: Int[Array, "*batch capacity"] | None
    memory_valid: Bool[Array, "*batch S"] | None = None

    @property
    def capacity(self) -> int | None:
        """Tokens that it can hold; None for any number."""
        return None if self.valid is None else self.valid.shape[-1]

    def pad_to(self, capacity: int) -> "Cache":
        """Return the same with a larger capacity; a cache without capacity is returned as it is."""
        if self.valid is None or self.positions is None:
            return self

        def padded(state: Any) -> Any:
            return state.pad_to(capacity) if hasattr(state, "pad_to") else state

        return self.replace(
            layers=jax.tree.map(padded, self.layers, is_leaf=lambda state: hasattr(state, "pad_to")),
            valid=longer(self.valid, capacity, -1),
            positions=longer(self.positions, capacity, -1),
        )

    def advance(self, valid: Bool[Array, "*batch T"]) -> tuple["Cache", Int[Array, "*batch T"]]:
        """Make room for T tokens after those so far: the cache, and the new tokens' positions.

        Raises:
          ValueError: more tokens than there are positions left, where the number used is known.
        """
        length = valid.shape[-1]
        positions = jnp.maximum(self.count[..., None] + jnp.cumsum(valid, axis=-1) - 1, 0)
        after = self.replace(used=self.used + length, count=self.count + valid.sum(-1, dtype=self.count.dtype))
        if self.valid is None or self.positions is None:
            return after, positions
        if not isinstance(self.used, jax.core.Tracer) and int(self.used) + length > self.capacity:  # type: ignore[operator]
            raise ValueError(f"{int(self.used)} of {self.capacity} positions are used; {length} more tokens do not fit")
        return after.replace(
            valid=write(self.valid, valid, self.used, axis=-1),
            positions=write(self.positions, positions, self.used, axis=-1),
        ), positions
