"""The linear map, over any number of axes on either side."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
    wide: bool = False,
) -> Float[Array, "..."]:
    """y = x W + b, contracting the last `contract` axes of x with the first ones of W.

    x [*batch, *in] and W [*in, *out] give y [*batch, *out]. Both are laid out as matrices first, so that one
    matrix product serves the whole batch, forward and backward, whatever the axes are called.
    y has the dtype of x and W together, whatever the bias has; with `wide`, float32 or wider, as the product is summed.

    Raises:
      ValueError: axes of x and W that are to be contracted differ.
    """
    batch, inputs, outputs = x.shape[: x.ndim - contract], weight.shape[:contract], weight.shape[contract:]
    if x.shape[x.ndim - contract :] != inputs:
        raise ValueError(f"x {x.shape} ends in other axes than weight {weight.shape} begins with; expected {inputs}")
    product = jnp.promote_types(x.dtype, weight.dtype)
    dtype = jnp.promote_types(product, jnp.float32) if wide else product
    y = jnp.matmul(
        x.reshape(-1, math.prod(inputs)), weight.reshape(math.prod(inputs), -1), preferred_element_type=dtype
    )
    if bias is not None:
        y = (y + bias.reshape(1, -1)).astype(dtype)
    return y.reshape(*batch, *outputs)
