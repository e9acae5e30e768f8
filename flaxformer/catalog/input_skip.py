"""Input skip: the embeddings are added to the residual stream before every branch, with learned factors (x0 skip).

    x ← λ_r x + λ_0 x_0,  then x ← x + f(norm(x)); λ_r = 1 and λ_0 = 0 at the start

Family: residuals and depth
Source: modded-nanogpt (`lambdas` of a block, in its record of 4 December 2024) and nanochat (`resid_lambdas` and
    `x0_lambdas`, dev/LOG.md, 11 January 2026). There, a pair of factors belongs to a layer, before its attention; here,
    to each branch of a layer.
Claim: nanochat reports a lower loss at all four depths, by 0.0103, 0.0077, 0.0057 and 0.0039 bits per byte at 8, 12, 16
    and 20 layers, each with the best rate of the factors.
Cost: two weights per branch; 3 D operations per branch and token.
Verified: a loop over branches in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, leaf, param


class InputSkip(Residual):
    """λ_r x + λ_0 x_0, and the update of the branch that reads it; the residual stream is (x, x_0).

    initial_stream: λ_r at the start.
    initial_input: λ_0 at the start.
    """

    class Weights(Parameters):
        """λ_r and λ_0 of a branch."""

        stream: Float[Array, ""] = param(value="initial_stream", decay=False)
        input: Float[Array, ""] = param(value="initial_input", decay=False)

    initial_stream: float = leaf(1.0)
    initial_input: float = leaf(0.0)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.stack([x, x], axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        return (weights.stream * x[..., 0, :] + weights.input * x[..., 1, :]).astype(x.dtype)

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        return jnp.stack([self.read(weights, x, context) + update, x[..., 1, :]], axis=-2).astype(x.dtype)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {"input skip": {"model.residual": InputSkip}}
