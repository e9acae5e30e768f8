"""Loss-free balancing: a bias per expert in the choice of experts, raised for those with less than the mean load.

    y = Σ_e g_e E_e(x), with g_e = s_e = σ(x R)_e for the largest s_e + b_e, and 0 for the others;
    after a step, b_e ← b_e + rate · sign(mean load − load_e)

Family: feed-forward
Source: Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", arXiv:2408.15664.
Claim: better perplexity and better balance than with an auxiliary loss, in models of up to 3B weights.
Cost: `experts` networks of weights, of which a token uses `active`.
Verified: a loop over tokens and experts in float64; the change of the bias in a training step.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Aux, Context, leaf, param
from flaxformer.catalog import RoutedExperts
from flaxformer.nn.linear import linear


class LossFreeBalancing(RoutedExperts):
    """The `active` experts with the largest s + b of `experts`, with gates s; each is relu(x U) D."""

    class Weights(RoutedExperts.Weights):
        """Weights of the experts, and the bias b."""

        bias: Float[Array, "experts"] = param(init="zeros", decay=False, trained=False)

    mixes_batch: ClassVar[bool] = True
    rate: float = leaf(0.001, at_least=0)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        score = jax.nn.sigmoid(linear(x, weights.router, wide=True))
        experts = jax.lax.top_k(score + weights.bias, self.active)[1]
        chosen = jax.nn.one_hot(experts, self.experts).sum(-2)
        y = self.mix(weights, x, jnp.take_along_axis(score, experts, axis=-1), experts)
        load = jnp.einsum("...,...e->e", valid / jnp.maximum(valid.sum(), 1), chosen) / self.active
        if not context.training:
            return y, Aux(statistics={"load": load})
        bias = weights.bias + self.rate * jnp.sign(load.mean() - load)
        return y, Aux(statistics={"load": load}, weights={"bias": bias.astype(weights.bias.dtype)})


VARIANTS: Mapping[str, Mapping[str, object]] = {"2 of 8, biased": {"model.feed_forward": LossFreeBalancing}}
