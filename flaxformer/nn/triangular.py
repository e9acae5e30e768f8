"""Solution of triangular systems by products of matrices alone.

On a CPU, LAPACK's solver in jaxlib divides a batch among the threads that also run the program's operations, and waits
for them: two solutions at the same time on two cores wait for each other without end. Products do not, and are fast on
every platform.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def solve_unit_lower(
    matrix: Float[Array, "*batch n n"], right: Float[Array, "*batch n d"]
) -> Float[Array, "*batch n d"]:
    """Return X with L X = R, where L has the entries of a matrix below the diagonal, and 1 on it.

    L is inverted by halves, [[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]], of all blocks of one size at once.

    Args:
      matrix: L; its entries on and above the diagonal are not read.
      right: R.
    """
    size = matrix.shape[-1]
    whole = 1 << (size - 1).bit_length()
    padding = [(0, 0)] * (matrix.ndim - 2) + [(0, whole - size)] * 2
    below = jnp.pad(jnp.where(jnp.tri(size, k=-1, dtype=bool), matrix, 0), padding)
    return _inverse(below)[..., :size, :size] @ right


def _inverse(below: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The inverse of 1 + below, for a strictly lower matrix whose size is a power of 2."""
    size = below.shape[-1]
    if size <= 2:
        return jnp.broadcast_to(jnp.eye(size, dtype=below.dtype), below.shape) - below  # its square is 0
    half = size // 2
    first, second = _inverse(jnp.stack([below[..., :half, :half], below[..., half:, half:]]))
    corner = -(second @ below[..., half:, :half] @ first)
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([upper, jnp.concatenate([corner, second], axis=-1)], axis=-2)
