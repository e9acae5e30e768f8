"""Input injection: a looped model that reads its input again in each pass over its layers.

    Y ← M(Y + P), with Y = 0 before the first pass, the embeddings P, and the same layers M in each pass

Family: residuals and depth
Source: Yang et al. 2023, "Looped Transformers are Better at Learning Learning Algorithms", arXiv:2311.12424.
Claim: the results of a standard Transformer in in-context learning of functions, with less than a tenth of its weights.
Cost: no weights; the embeddings stay in memory.
Verified: a loop over passes in float64.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, static


class InputInjection(Residual):
    """Y ← Y + P before the first branch of each `every` layers; the residual stream has Y in place 0, and P in 1."""

    every: int = static(1, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T 2 D"]:
        return jnp.stack([jnp.zeros_like(x), x], axis=-2)

    def read(
        self, weights: Parameters, x: Float[Array, "*batch T 2 D"], context: Context
    ) -> Float[Array, "*batch T D"]:
        layer = 0 if context.layer is None else context.layer
        is_first = (layer % self.every == 0) & (context.branch == 0)
        return x[..., 0, :] + jnp.where(is_first, x[..., 1, :], 0)

    def join(
        self, weights: Parameters, x: Float[Array, "*batch T 2 D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T 2 D"]:
        return x.at[..., 0, :].set(self.read(weights, x, context) + update)

    def end(self, x: Float[Array, "*batch T 2 D"]) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "looped layer": {"model.residual": InputInjection, "model.distinct_blocks": 1}
}
