"""DenseFormer: after a branch, the residual stream becomes a learned weighted average of all its former values.

    X_i = Y_{i−1} + f_i(Y_{i−1}) and Y_i = Σ_{j ≤ i} α_ij X_j, with X_0 the embeddings; initially α_ii = 1, others 0

Family: residuals and depth
Source: Pagliardini et al. 2024, "DenseFormer: Enhancing Information Flow in Transformers via Depth Weighted
Averaging", arXiv:2402.02622 (there, after each block; here, after each branch of a block).
Claim: the perplexity of a much deeper Transformer, at a lower cost in memory and time.
Cost: B + 1 weights for each of the B branches of the model; all former values of the stream in memory.
Verified: a loop over branches in float64; initially, the plain rule.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, param, static


class DenseFormer(Residual):
    """Y_i = Σ_{j ≤ i} α_ij X_j; the residual stream has Y in place 0, and X_j in place j + 1.

    branches: number of branches of a block.
    """

    class Weights(Parameters):
        """α_i is `average` plus its initial value."""

        average: Float[Array, "places"] = param(init="zeros", decay=False)

    branches: int = static(2, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"places": self.branches * model["layers"] + 1}

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        later = jnp.zeros((*x.shape[:-1], self.branches * layers, x.shape[-1]), x.dtype)
        return jnp.concatenate([x[..., None, :], x[..., None, :], later], axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        layer = 0 if context.layer is None else context.layer
        place, places = layer * self.branches + context.branch + 1, x.shape[-2] - 1
        x = x.at[..., place + 1, :].set(x[..., 0, :] + update)
        average = jax.nn.one_hot(place, places) + jnp.where(jnp.arange(places) <= place, weights.average, 0)
        y = jnp.einsum("p,...pd->...d", average, x[..., 1:, :])
        return x.at[..., 0, :].set(y.astype(x.dtype))

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {"depth-weighted average": {"model.residual": DenseFormer}}
