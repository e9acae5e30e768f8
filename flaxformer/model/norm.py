"""A norm in its place: empty places are the identity."""

from typing import Any

from jaxtyping import Array, Float

from flaxformer.component import Aux, Context, with_aux
from flaxformer.parts.norms import Norm


def normalise(
    weights: Any, norm: Norm | None, x: Float[Array, "*batch T D"], context: Context
) -> tuple[Float[Array, "*batch T D"], Aux]:
    """The normalised tokens, and what the norm says beside; None is the identity.

    The result has the dtype of x, whatever the norm computes in.
    """
    if norm is None:
        return x, Aux()
    y, aux = with_aux(norm.apply(weights, x, context))
    return y.astype(x.dtype), aux
