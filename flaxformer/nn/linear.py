"""Linear maps over several axes, and rows of a table."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import linear as fast
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.widen import widen


def linear(
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
    wide: bool = False,
) -> Float[Array, "..."]:
    """Return y = x W + b, summed over the last `contract` axes of x and the first ones of W.

    Both are reshaped to matrices first, so that forward and backward pass are single matrix products.

    Args:
      x: [*batch, *in].
      weight: W, [*in, *out].
      bias: b, [*out].
      contract: number of axes in *in.
      wide: return float32 or wider, the precision of the sum; by default, the promoted dtype of x and W.

    Returns:
      y [*batch, *out].

    Raises:
      ValueError: the axes of x and W that are summed over differ.
    """
    batch, inputs, outputs = x.shape[: x.ndim - contract], weight.shape[:contract], weight.shape[contract:]
    if x.shape[x.ndim - contract :] != inputs:
        raise ValueError(f"x has shape {x.shape} and weight {weight.shape}; expected x to end in {inputs}")
    product = jnp.promote_types(x.dtype, weight.dtype)
    dtype = jnp.promote_types(product, jnp.float32) if wide else product
    y = jnp.matmul(
        x.reshape(-1, math.prod(inputs)), weight.reshape(math.prod(inputs), -1), preferred_element_type=dtype
    )
    if bias is not None:
        y = (y + bias.reshape(1, -1)).astype(dtype)
    return y.reshape(*batch, *outputs)


@with_formulations("lookup", fast.LOOKUP)
def lookup(table: Float[Array, "V D"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Return the rows of a table.

    The gradient of a row is the sum over all occurrences of its id, in float32 or wider.
    """
    return widen(table)[ids].astype(table.dtype)
