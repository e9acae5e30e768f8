"""Dynamic hyper-connections: several residual streams, read and mixed with weights that depend on the token.

    with H̄ = norm(H): a branch f reads α(H) H, and H ← A(H)ᵀ H + β(H) f, where α = e + s_α tanh(H̄ w_α),
    A = I + A_0 + s_α tanh(H̄ W_A) and β = β_0 + s_β tanh(H̄ w_β), with n streams H per token

Family: residuals and depth
Source: Zhu et al. 2024, "Hyper-Connections", arXiv:2409.19606 (the dynamic form).
Claim: lower loss than the plain residual connection in dense and expert models of 1B and 7B weights.
Cost: n² + 2n + (n + 2) D + 2 weights per branch; n residual streams in memory.
Verified: a loop over tokens and streams in float64; with one stream and maps of 0, the plain rule.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, param, static
from flaxformer.nn import layer_norm


class DynamicHyperConnections(Residual):
    """n residual streams H per token, with α, A and β that are learned sums of a constant and a function of H.

    Initially the functions are 0, A is I, β is 1, and α selects a single stream, a different one in each layer.
    """

    class Weights(Parameters):
        """The constants are `read`, `mix` and `write`; the functions have maps and scales s."""

        read: Float[Array, "streams"] = param(init="zeros", decay=False)
        mix: Float[Array, "streams streams"] = param(init="zeros", decay=False)
        write: Float[Array, "streams"] = param(init="ones", decay=False)
        read_map: Float[Array, "d_model"] = param(init="zeros", decay=False)
        mix_map: Float[Array, "d_model streams"] = param(init="zeros", decay=False)
        write_map: Float[Array, "d_model"] = param(init="zeros", decay=False)
        read_scale: Float[Array, ""] = param(value=0.01, decay=False)
        write_scale: Float[Array, ""] = param(value=0.01, decay=False)

    streams: int = static(4, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.repeat(x[..., None, :], self.streams, axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        layer = 0 if context.layer is None else context.layer
        constant = jax.nn.one_hot(layer % self.streams, self.streams) + weights.read
        alpha = constant + weights.read_scale * jnp.tanh(self.normalised(x) @ weights.read_map)
        return jnp.einsum("...n,...nd->...d", alpha, x).astype(x.dtype)

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        h = self.normalised(x)
        mix = weights.mix + weights.read_scale * jnp.tanh(h @ weights.mix_map)
        beta = weights.write + weights.write_scale * jnp.tanh(h @ weights.write_map)
        mixed = jnp.einsum("...mn,...md->...nd", mix, x)
        return (x + mixed + beta[..., None] * update[..., None, :]).astype(x.dtype)

    def normalised(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T n D"]:
        """Return each stream after LayerNorm without gain and bias, in float32 or wider."""
        return layer_norm(x.astype(jnp.promote_types(x.dtype, jnp.float32)), None, None, epsilon=1e-5)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x.sum(-2)


VARIANTS: Mapping[str, Mapping[str, object]] = {"4 dynamic streams": {"model.residual": DynamicHyperConnections}}
