"""Manifold-constrained hyper-connections (mHC): residual streams that are mixed by doubly stochastic matrices.

    x ← H_res x + H_postᵀ f(H_pre x), with n streams x per token, v = RMSNorm(vec x), H_pre = σ(a v φ + b),
    H_post = 2 σ(a v φ + b) and H_res = Sinkhorn(exp(a v φ + b)), each with its φ, a and b

Family: residuals and depth
Source: Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections", arXiv:2512.24880. The initial biases are ours.
Claim: stable training at scale, where unconstrained hyper-connections are not, with better results.
Cost: n D (n² + 2n) weights per branch and as many multiplications per token; n residual streams in memory.
Verified: a loop over tokens, streams and iterations in float64; rows and columns of the mixing matrix sum to 1.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, param, static
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear


class ManifoldHyperConnections(Residual):
    """n residual streams per token; `iterations` of Sinkhorn and Knopp scale rows, then columns, to sums of 1.

    The initial biases of H_pre are those of a mean of the streams, and the others are 0.
    """

    class Weights(Parameters):
        """φ are `…_map`, a are `…_scale`, and b are `…_bias`."""

        pre_map: Float[Array, "streams d_model streams"] = param(fan_in="streams d_model", kind="residual")
        post_map: Float[Array, "streams d_model streams"] = param(fan_in="streams d_model", kind="residual")
        mix_map: Float[Array, "streams d_model streams streams"] = param(fan_in="streams d_model", kind="residual")
        pre_bias: Float[Array, "streams"] = param(value="mean_logit", decay=False)
        post_bias: Float[Array, "streams"] = param(init="zeros", decay=False)
        mix_bias: Float[Array, "streams streams"] = param(init="zeros", decay=False)
        pre_scale: Float[Array, ""] = param(value=0.01, decay=False)
        post_scale: Float[Array, ""] = param(value=0.01, decay=False)
        mix_scale: Float[Array, ""] = param(value=0.01, decay=False)

    streams: int = static(4, at_least=2)
    iterations: int = static(20, at_least=1)

    mean_logit = property(lambda self: -math.log(self.streams - 1))

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.repeat(x[..., None, :], self.streams, axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        pre = weights.pre_scale * linear(self.vector(x), weights.pre_map, contract=2) + weights.pre_bias
        return jnp.einsum("...n,...nd->...d", jax.nn.sigmoid(pre), x).astype(x.dtype)

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        v = self.vector(x)
        post = weights.post_scale * linear(v, weights.post_map, contract=2) + weights.post_bias
        mix = weights.mix_scale * linear(v, weights.mix_map, contract=2) + weights.mix_bias
        mix = jax.lax.fori_loop(
            0, self.iterations, lambda _, m: jax.nn.log_softmax(jax.nn.log_softmax(m, axis=-1), axis=-2), mix
        )
        mixed = jnp.einsum("...mn,...nd->...md", jnp.exp(mix), x)
        return (mixed + 2 * jax.nn.sigmoid(post)[..., None] * update[..., None, :]).astype(x.dtype)

    def vector(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T n D"]:
        """Return the streams of a token divided by their common root mean square, in float32 or wider."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return rms_norm(wide.reshape(*x.shape[:-2], -1), None, None, epsilon=1e-6).reshape(x.shape)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x.sum(-2)


VARIANTS: Mapping[str, Mapping[str, object]] = {"4 constrained streams": {"model.residual": ManifoldHyperConnections}}
