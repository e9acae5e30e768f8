"""Normal random numbers of many arrays, drawn in blocks by one compiled body.

A compiler that sees an array's random numbers as code of its own compiles Threefry once per array, which was 40 % of
all compilation for a model of 4 layers. Here a loop runs over blocks of equal size, whatever arrays they belong to, so
that the time to compile depends on neither the number of arrays nor their shapes.

The numbers of an array do not depend on the others, on the size of a block, or on the order: number i of an array with
key k is a function of Threefry(k, i) alone (Salmon et al. 2011), as in `jax.random.normal`. Compiled, they have its
bits.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, UInt32

from flaxformer.core.params import fold_in_name, name_number

SMALLEST_BLOCK, MOST_BLOCKS = 2**12, 2**10
"""Numbers of a block at least; and about how many blocks there are at most, beyond one per array."""

ROOT_2 = np.float32(np.sqrt(2))


class NormalArray(NamedTuple):
    """An array of std · N(0, 1), whose random key is that of its name."""

    name: str
    shape: tuple[int, ...]
    std: float | Array

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def is_alike(self) -> bool:
        """True if blocks can have its numbers: one standard deviation, and fewer than 2³² of them."""
        return jnp.ndim(self.std) == 0 and 0 < self.size < 2**32


def draw(key: Array, arrays: Sequence[NormalArray]) -> list[Float[Array, "..."]]:
    """Return, in float32, std · jax.random.normal(fold_in_name(key, name), shape) of each array.

    Within `jax.jit`, the bits are the same.

    Arrays are drawn one by one if they are not alike, if the key is not of JAX's partitionable Threefry, and on a mesh
    that divides weights, where each device then draws its own part.
    """
    shared = [index for index, array in enumerate(arrays) if array.is_alike] if _counts(key) else []
    drawn = dict(zip(shared, draw_together(key, [arrays[index] for index in shared]), strict=True))
    return [drawn[index] if index in drawn else _draw_alone(key, array) for index, array in enumerate(arrays)]


def _draw_alone(key: Array, array: NormalArray) -> Float[Array, "..."]:
    return array.std * jax.random.normal(fold_in_name(key, array.name), array.shape, jnp.float32)


def _counts(key: Array) -> bool:
    """True if bit i of a key's stream is Threefry(key, i), and no device holds a part of a weight alone."""
    is_threefry = str(jax.random.key_impl(key)) == "threefry2x32" and jax.threefry_partitionable.value
    mesh = jax.sharding.get_abstract_mesh()
    return bool(is_threefry and (mesh.empty or mesh.shape.get("data", 1) == mesh.size))


def draw_together(key: Array, arrays: Sequence[NormalArray]) -> list[Float[Array, "..."]]:
    """Return the arrays, drawn as blocks in which arrays of one shape, and of these the layers of a weight, adjoin.

    A stack of layers is then a slice of the blocks, which the compiler finds by itself.
    """
    if not arrays:
        return []
    block = block_size(sum(array.size for array in arrays))
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    order = sorted(
        range(len(arrays)), key=lambda i: (shapes.index(arrays[i].shape), re.sub(r"\d+", "", arrays[i].name))
    )
    counts = {shape: -(-math.prod(shape) // block) for shape in shapes}
    owners = np.array([i for i in order for _ in range(counts[arrays[i].shape])])
    starts = np.array([n * block for i in order for n in range(counts[arrays[i].shape])], np.uint32)
    names = np.array([name_number(array.name) for array in arrays], np.uint32)
    keys = jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, names))
    # XLA multiplies scalars first, as here, wherever it sees std · √2 · x as one expression.
    scales = jnp.stack([jnp.asarray(array.std, jnp.float32) * ROOT_2 for array in arrays])

    def draw_block(item: tuple[Array, Array, Array]) -> Float[Array, " count"]:
        block_key, start, scale = item
        return scale * _scaled_normal(block_key, start, block)

    numbers = jax.lax.map(draw_block, (keys[owners], starts, scales[owners]))
    drawn: dict[int, Array] = {}
    for shape in shapes:
        members = [i for i in order if arrays[i].shape == shape]
        shape_numbers, numbers = jnp.split(numbers, [len(members) * counts[shape]])
        whole = shape_numbers.reshape(len(members), -1)[:, : math.prod(shape)].reshape(-1, *shape)
        drawn |= {i: whole[place] for place, i in enumerate(members)}
    return [drawn[i] for i in range(len(arrays))]


def block_size(total: int) -> int:
    """Return the numbers per block for a total: a power of two."""
    return max(SMALLEST_BLOCK, 1 << (total // MOST_BLOCKS).bit_length())


def _scaled_normal(key: UInt32[Array, "2"], start: UInt32[Array, ""], count: int) -> Float[Array, " count"]:
    """Return `count` numbers of N(0, 1) / √2, from number `start` on of the key's stream.

    As JAX draws them: 23 random bits are the fraction of a number u in (−1, 1), and √2 erf⁻¹(u) is normal.
    """
    first, second = jnp.broadcast_to(key[:, None], (2, count))
    low = start + jnp.arange(count, dtype=jnp.uint32)
    bits = jnp.bitwise_xor(*threefry2x32_p.bind(first, second, jnp.zeros_like(low), low))
    fraction = jax.lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32) - 1
    least = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jnp.maximum(least, fraction * (np.float32(1) - least) + least)
    return jax.lax.erf_inv(uniform)
