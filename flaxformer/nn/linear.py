"""The linear map, over any number of axes on either side."""

import math

from jaxtyping import Array, Float


def linear(
    x: Float[Array, "..."], weight: Float[Array, "..."], bias: Float[Array, "..."] | None = None, *, contract: int = 1
) -> Float[Array, "..."]:
    """y = x W + b, contracting the last `contract` axes of x with the first ones of W.

    x [*batch, *in] and W [*in, *out] give y [*batch, *out]. Both are laid out as matrices first, so that one
    matrix product serves the whole batch, forward and backward, whatever the axes are called.
    """
    batch, inputs, outputs = x.shape[: x.ndim - contract], weight.shape[:contract], weight.shape[contract:]
    y = x.reshape(-1, math.prod(inputs)) @ weight.reshape(math.prod(inputs), -1)
    if bias is not None:
        y = y + bias.reshape(1, -1)
    return y.reshape(*batch, *outputs)
