"""Decoding states: the keys and values of the tokens so far, or the tokens themselves, as explicit pytrees."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.pytree import Node


class KeysValues(Node):
    """Keys (None under a frozen pattern) and values that queries read, [..., S, K, width]."""

    key: Float[Array, "*batch S K d_k"] | None
    value: Float[Array, "*batch S K d_v"]


class PackedKV(Node):
    """Keys and values of a cache, [rows, capacity, width]: one row per key-value head of each sequence."""

    key: Float[Array, "rows capacity d_k"] | None
    value: Float[Array, "rows capacity d_v"]

    def unpack(self, batch: tuple[int, ...]) -> KeysValues:
        """The same as [*batch, capacity, K, width]."""
        key, value = (
            None if x is None else jnp.swapaxes(x.reshape(*batch, -1, *x.shape[-2:]), -3, -2)
            for x in (self.key, self.value)
        )
        return KeysValues(key=key, value=value)  # type: ignore[arg-type]


def pack(x: KeysValues, valid: Bool[Array, "*batch S"] | None) -> PackedKV:
    """The same in rows; 0 at padding, whatever it was: times a weight of 0, a NaN is still one."""

    def folded(x: Array) -> Array:
        real = x if valid is None else jnp.where(valid[..., None, None], x, 0)
        return jnp.swapaxes(real, -3, -2).reshape(-1, x.shape[-3], x.shape[-1])

    return PackedKV(key=None if x.key is None else folded(x.key), value=folded(x.value))


class LayerCache(Node):
    """One attention's keys and values of the tokens so far."""

    own: PackedKV

    def append(
        self, new: KeysValues, used: Int[Array, ""], valid: Bool[Array, "*batch T"] | None = None
    ) -> "LayerCache":
        """The new tokens' keys and values written to the capacity from `used` on; 0 for padding."""
        rows = pack(new, valid)
        return LayerCache(jax.tree.map(lambda old, x: write(old, x, used, axis=-2), self.own, rows))

    def pad_to(self, capacity: int) -> "LayerCache":
        """The same with room for more tokens."""
        return LayerCache(jax.tree.map(lambda x: longer(x, capacity, -2), self.own))


class InputHistory(Node):
    """Inputs so far of a mixer without a decoding state of its own, which it reads again at every step."""

    inputs: Float[Array, "*batch capacity D"]

    def pad_to(self, capacity: int) -> "InputHistory":
        """The same with room for more tokens."""
        return InputHistory(longer(self.inputs, capacity, -2))


class Memory(Node):
    """A source, for a cross-attention that reads it anew at every step."""

    source: Float[Array, "*batch S D"]


def write(old: Array, new: Array, start: Int[Array, ""], axis: int) -> Array:
    """`old` with `new` from `start` on along an axis."""
    return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, old.ndim + axis)


def longer(x: Array, length: int, axis: int) -> Array:
    """The array with zeros after its end along an axis."""
    more = [(0, 0)] * x.ndim
    more[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, more)
