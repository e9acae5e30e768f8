"""What decoding remembers: the keys and values of the tokens so far, as an explicit pytree."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.model.attention import KeysValues, Rows, as_rows
from flaxformer.pytree import Node


class LayerCache(Node):
    """One layer's keys and values; and those of the memory, which never change."""

    own: Rows
    memory: Rows | None = None

    def extended(
        self, new: KeysValues, used: Int[Array, ""], valid: Bool[Array, "*batch T"] | None = None
    ) -> "LayerCache":
        """The new tokens' keys and values written to the slots from `used` on; 0 for padding."""
        rows = as_rows(new, valid)
        return self.replace(own=jax.tree.map(lambda old, x: write(old, x, used, axis=-2), self.own, rows))


class Cache(Node):
    """A decoder's state between two calls. Slots are filled in order; padding fills slots too, and is not valid."""

    layers: Any
    """A `LayerCache` a layer, or one with a leading `layers` axis, as the weights are laid out."""
    used: Int[Array, ""]
    valid: Bool[Array, "*batch slots"]
    positions: Int[Array, "*batch slots"]
    memory_valid: Bool[Array, "*batch S"] | None = None

    @property
    def slots(self) -> int:
        """Tokens that it can hold."""
        return self.valid.shape[-1]

    def grown(self, slots: int) -> "Cache":
        """The same with that many slots, the further ones empty."""

        def longer(x: Array, axis: int) -> Array:
            more = [(0, 0)] * x.ndim
            more[axis] = (0, slots - x.shape[axis])
            return jnp.pad(x, more)

        def layer(old: LayerCache) -> LayerCache:
            return old.replace(own=jax.tree.map(lambda x: longer(x, -2), old.own))

        return self.replace(
            layers=jax.tree.map(layer, self.layers, is_leaf=lambda x: isinstance(x, LayerCache)),
            valid=longer(self.valid, -1),
            positions=longer(self.positions, -1),
        )

    def admit(self, valid: Bool[Array, "*batch T"]) -> tuple["Cache", Int[Array, "*batch T"]]:
        """Make room for T tokens after those so far: the cache, and the new tokens' positions.

        Raises:
          ValueError: more tokens than there are slots left, where the number used is known.
        """
        length = valid.shape[-1]
        if not isinstance(self.used, jax.core.Tracer) and int(self.used) + length > self.slots:
            raise ValueError(f"{int(self.used)} of {self.slots} slots are used; {length} more tokens do not fit")
        before = self.valid.sum(-1, keepdims=True)
        positions = jnp.maximum(before + jnp.cumsum(valid, axis=-1) - 1, 0)
        return self.replace(
            used=self.used + length,
            valid=write(self.valid, valid, self.used, axis=-1),
            positions=write(self.positions, positions, self.used, axis=-1),
        ), positions


def write(old: Array, new: Array, start: Int[Array, ""], axis: int) -> Array:
    """`old` with `new` from `start` on along an axis."""
    return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, old.ndim + axis)
