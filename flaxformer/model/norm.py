"""A norm in its place: empty places are the identity."""

from typing import Any

from jaxtyping import Array, Float

from flaxformer.component import Aux, Context, with_aux
from flaxformer.parts.norms import Norm


def normalise(
    weights: Any, norm: Norm | None, x: Float[Array, "*batch T D"], context: Context
) -> tuple[Float[Array, "*batch T D"], Aux]:
    """The normalised tokens, and what the norm says beside; None is the identity."""
    return (x, Aux()) if norm is None else with_aux(norm.apply(weights, x, context))
