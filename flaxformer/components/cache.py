"""Decoding states of attention, and of mixers that read the whole prefix again, as pytrees."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.core.pytree import Node
from flaxformer.nn.heads import unpack_rows


class KeysValues(Node):
    """Keys and values, [..., S, K, width]; no keys for a frozen pattern."""

    key: Float[Array, "*batch S K d_k"] | None
    value: Float[Array, "*batch S K d_v"]


class PackedKV(Node):
    """Keys and values of a cache, [rows, capacity, width]: one row per sequence and key-value head."""

    key: Float[Array, "rows capacity d_k"] | None
    value: Float[Array, "rows capacity d_v"]

    def unpack(self, batch: tuple[int, ...]) -> KeysValues:
        """Return the keys and values as [*batch, capacity, K, width]."""
        return jax.tree.map(lambda x: unpack_rows(x, batch), KeysValues(key=self.key, value=self.value))


def pack(x: KeysValues, valid: Bool[Array, "*batch S"] | None) -> PackedKV:
    """Return keys and values in rows, with 0 at padding, since NaN there times a weight of 0 is NaN."""

    def pack_rows(x: Array) -> Array:
        masked = x if valid is None else jnp.where(valid[..., None, None], x, 0)
        return jnp.swapaxes(masked, -3, -2).reshape(-1, x.shape[-3], x.shape[-1])

    return PackedKV(key=None if x.key is None else pack_rows(x.key), value=pack_rows(x.value))


class LayerCache(Node):
    """Keys and values of one self-attention, for the tokens so far."""

    packed: PackedKV

    def append(
        self, new: KeysValues, used: Int[Array, ""], valid: Bool[Array, "*batch T"] | None = None
    ) -> "LayerCache":
        """Write the keys and values of new tokens from index `used` on; 0 for padding."""
        packed = pack(new, valid)
        return LayerCache(jax.tree.map(lambda old, x: write(old, x, used, axis=-2), self.packed, packed))

    def pad_to(self, capacity: int) -> "LayerCache":
        """Return the state with a larger capacity."""
        return LayerCache(jax.tree.map(lambda x: pad_axis(x, capacity, -2), self.packed))


class InputHistory(Node):
    """Inputs so far of a mixer without a decoding state, which reads all of them again at every step."""

    inputs: Float[Array, "*batch capacity D"]

    def pad_to(self, capacity: int) -> "InputHistory":
        """Return the state with a larger capacity."""
        return InputHistory(pad_axis(self.inputs, capacity, -2))


class Memory(Node):
    """Source of a cross-attention that computes keys and values again at every step."""

    source: Float[Array, "*batch S D"]


def write(old: Array, new: Array, start: Int[Array, ""], axis: int) -> Array:
    """Return `old` with `new` written along an axis, from index `start` on."""
    return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, old.ndim + axis)


def pad_axis(x: Array, length: int, axis: int) -> Array:
    """Append zeros along an axis, up to a length."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths)
