"""Hyper-connections: several residual streams, which every branch reads and updates with learned weights.

    a branch f reads α H, and H ← (I + A) H + β f(α H), with n streams H per token

Family: residuals and depth
Source: Zhu et al. 2024, "Hyper-Connections", arXiv:2409.19606, section 2 (the static form, with its initial
values).
Claim: lower loss than the plain residual connection in dense and expert models of 1B and 7B weights.
Cost: n² + 2n weights per branch; n residual streams in memory.
Verified: initially, the plain rule; each branch's equation in the package's own parts.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Context,
    Parameters,
    Residual,
    param,
    static,
)


class HyperConnections(Residual):
    """n residual streams H per token: a branch f reads α H, and H ← (I + A) H + β f(α H).

    Initially, A is 0, β is 1, and α selects a single stream, a different one in each layer; the sum of the streams is
    then n times the stream of the plain rule.
    """

    class Weights(Parameters):
        """A is `mix`, β is `write`, and α is `read` plus its initial value."""

        read: Float[Array, "streams"] = param(init="zeros", decay=False)
        mix: Float[Array, "streams streams"] = param(init="zeros", decay=False)
        write: Float[Array, "streams"] = param(init="ones", decay=False)

    streams: int = static(4, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.repeat(x[..., None, :], self.streams, axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        initial = jax.nn.one_hot(context.layer % self.streams, self.streams)
        return jnp.einsum("n,...nd->...d", initial + weights.read, x).astype(x.dtype)

    def join(
        self,
        weights: Weights,
        x: Float[Array, "*batch T n D"],
        update: Float[Array, "*batch T D"],
        context: Context,
    ) -> Float[Array, "*batch T n D"]:
        mixed = jnp.einsum("mn,...nd->...md", weights.mix, x)
        written = jnp.einsum("n,...d->...nd", weights.write, update)
        return (x + mixed + written).astype(x.dtype)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x.sum(-2)


VARIANTS: Mapping[str, Mapping[str, object]] = {"4 streams": {"model.residual": HyperConnections}}
