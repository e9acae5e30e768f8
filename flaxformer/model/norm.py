"""Application of the norm at one place of a block."""

from jaxtyping import Array, Float

from flaxformer.components.component import Aux, Context, with_aux
from flaxformer.components.norms import Norm
from flaxformer.core.params import Parameters


def normalise(
    weights: Parameters | None, norm: Norm | None, x: Float[Array, "*batch T D"], context: Context
) -> tuple[Float[Array, "*batch T D"], Aux]:
    """Return the normalised tokens, in the dtype of x, and the norm's `Aux`; without a norm, return x."""
    if norm is None:
        return x, Aux()
    y, aux = with_aux(norm.apply(weights, x, context))
    return y.astype(x.dtype), aux
