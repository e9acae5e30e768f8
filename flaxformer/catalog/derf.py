"""Dynamic erf (Derf): an error function in place of LayerNorm, without a statistic of the token.

    Derf(x) = γ ⊙ erf(α x + s) + β

Family: norms
Source: Chen et al. 2025, "Stronger Normalization-Free Transformers", arXiv:2512.10938. α begins at 0.5 here, as in DyT.
Claim: better results than LayerNorm, RMSNorm and DyT in vision, speech and DNA models.
Cost: two weights more than LayerNorm; no reduction over the token.
Verified: the equation in float64.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Norm, Parameters, leaf, param


class DynamicErf(Norm):
    """Derf(x) = γ ⊙ erf(α x + s) + β with learned scalars α, initially `initial`, and s, and vectors γ and β."""

    class Weights(Parameters):
        """α is `slope`, s is `shift`, γ is `gain` and β is `bias`."""

        slope: Float[Array, ""] = param(value="initial", decay=False)
        shift: Float[Array, ""] = param(init="zeros", decay=False)
        gain: Float[Array, "d_norm"] = param(init="ones", decay=False)
        bias: Float[Array, "d_norm"] = param(init="zeros", decay=False)

    initial: float = leaf(0.5, above=0)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        row = (1,) * (x.ndim - 1) + (-1,)
        y = jax.lax.erf(weights.slope * x.astype(jnp.promote_types(x.dtype, jnp.float32)) + weights.shift)
        return (weights.gain.reshape(row) * y + weights.bias.reshape(row)).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"Derf": {"model.norm_kind": DynamicErf}}
