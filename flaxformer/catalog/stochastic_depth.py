"""Stochastic depth: in training, each residual branch is left out with a probability that grows with depth.

    x + b_l f(x) with b_l ~ Bernoulli(p_l) and p_l = 1 − l/L · (1 − p_L); in evaluation, x + p_l f(x)

Family: residuals and depth
Source: Huang et al. 2016, "Deep Networks with Stochastic Depth", arXiv:1603.09382, with the linear rule of p.
Claim: lower test error and shorter training than a residual network of constant depth, in image classification.
Cost: no weights; here, a branch that is left out is computed nevertheless.
Verified: a loop over layers in NumPy; the shares of branches that are kept in training.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, leaf


class StochasticDepth(Residual):
    """x + b_l f(x), with a draw b_l per branch and part of the batch; in evaluation, x + p_l f(x).

    survival: p_L, the probability with which the branches of the last layer are kept.
    """

    survival: float = leaf(0.5, above=0, at_most=1)

    def join(
        self, weights: Parameters, x: Float[Array, "*batch T D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T D"]:
        layer = 0 if context.layer is None else context.layer
        probability = 1 - (layer + 1) / max(context.layers, 1) * (1 - self.survival)
        if context.training and context.key is not None:
            kept = jax.random.bernoulli(jax.random.fold_in(context.key, 1), probability)
            return jnp.where(kept, x + update, x)
        return x + (probability * update).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"survival 1/2": {"model.residual": StochasticDepth}}
