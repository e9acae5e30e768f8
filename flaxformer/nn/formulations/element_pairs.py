"""Elements of bfloat16 arrays two at a time, for functions of single elements on a GPU.

XLA's loops on a GPU give four elements to a thread. In bfloat16 these are 8 bytes, too few to use the memory's
bandwidth; four pairs are 16. Bits have no derivative: a function that uses pairs has one of its own.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

FEWEST = 2**22
"""Elements from which an array is read in pairs. The time of small arrays is that of starting a loop, and a loop over
pairs is one more: XLA fuses it with no other."""


def unsuitable_reason(x: Float[Array, "*batch D"]) -> str | None:
    """Return why pairs are not faster on a GPU; None for a large array in bfloat16 with rows of an even length."""
    if x.dtype != jnp.bfloat16 or x.ndim == 0 or x.shape[-1] % 2:
        return "pairs need bfloat16 and rows of an even length"
    return None if x.size >= FEWEST else f"{x.size:,} numbers; pairs are faster from {FEWEST:,}"


def split_pairs(x: Float[Array, "*batch D"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the elements with even and those with odd indices, in float32."""
    bits = jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, 2), jnp.uint32)
    return _as_float(bits << 16), _as_float(bits & jnp.uint32(0xFFFF0000))


def join_pairs(even: Float[Array, "..."], odd: Float[Array, "..."]) -> Float[Array, "*batch D"]:
    """Return an array in bfloat16 from its elements with even and with odd indices: the inverse of `split_pairs`."""
    low, high = (_as_bits(x) for x in (even, odd))
    pairs = jax.lax.bitcast_convert_type(low | (high << 16), jnp.bfloat16)
    return pairs.reshape(*even.shape[:-1], -1)


def _as_float(bits: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the float32 of these bits, whose upper half is that of a bfloat16."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _as_bits(x: Float[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return the 16 bits of x rounded to bfloat16."""
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32)
