"""Dynamic tanh (DyT): an activation in place of LayerNorm, without a statistic of the token.

    DyT(x) = γ ⊙ tanh(α x) + β

Family: norms
Source: Zhu et al. 2025, "Transformers without Normalization", arXiv:2503.10622, section 4.
Claim: the results of LayerNorm or RMSNorm in vision, language and speech models, with the same settings.
Cost: one weight more than LayerNorm; no reduction over the token.
Verified: the equation in NumPy.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Context,
    Norm,
    Parameters,
    leaf,
    param,
)


class DynamicTanh(Norm):
    """DyT(x) = γ ⊙ tanh(α x) + β with a learned scalar α, initially `initial`, and learned vectors γ and β."""

    class Weights(Parameters):
        """α is `slope`, γ is `gain` and β is `bias`."""

        slope: Float[Array, ""] = param(value="initial", decay=False)
        gain: Float[Array, "d_norm"] = param(init="ones", decay=False)
        bias: Float[Array, "d_norm"] = param(init="zeros", decay=False)

    initial: float = leaf(0.5, above=0)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        row = (1,) * (x.ndim - 1) + (-1,)
        y = weights.gain.reshape(row) * jnp.tanh(weights.slope * x) + weights.bias.reshape(row)
        return y.astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"DyT": {"model.norm_kind": DynamicTanh}}
