"""Formulations of maps: the rows of a table in 16 bits, and the attention scale as a factor of a map."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import Formulation


@jax.custom_vjp
def narrow_lookup(table: Float[Array, "V D"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Return the rows of a table; their gradient is summed in float32."""
    return table[ids]


def _lookup_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, ids = residuals  # of the table, its shape alone: a compiled program does not keep it
    return jnp.zeros(table.shape, jnp.float32).at[ids].add(gradient.astype(jnp.float32)).astype(table.dtype), None


narrow_lookup.defvjp(lambda table, ids: (table[ids], (table, ids)), _lookup_backward)


def _unsuitable_reason(table: Array, ids: Array) -> str | None:
    is_wide = jnp.promote_types(table.dtype, jnp.float32) == table.dtype
    return "the table has the precision of the sum" if is_wide else None


LOOKUP = {
    "narrow": Formulation(
        narrow_lookup, gain="no copy of the table in float32 in memory", unsuitable_reason=_unsuitable_reason
    )
}
