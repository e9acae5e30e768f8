"""Shared expert: some experts compute every token, beside small experts of which a router selects a few.

    y = Σ_i E_i(x) + Σ_e g_e E_e(x), with shared experts i; g_e = s_e for the largest s = softmax(x R), 0 for the others

Family: feed-forward
Source: Dai et al. 2024, "DeepSeekMoE: Towards Ultimate Expert Specialization in Mixture-of-Experts Language Models",
arXiv:2401.06066, section 3.2; balance loss of section 3.3, over experts.
Claim: with 16B weights, the results of LLaMA2 7B at about 40% of its computation.
Cost: `experts` + `shared` networks of weights, of which a token uses `active` + `shared`.
Verified: a loop over tokens and experts in float64.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Aux, Context, leaf, param, static
from flaxformer.catalog import RoutedExperts
from flaxformer.nn.linear import linear


class SharedExperts(RoutedExperts):
    """`shared` experts for all tokens, and the `active` most probable of `experts` others; each is relu(x U) D.

    The gates are the router's probabilities, not scaled to a sum of 1.
    """

    class Weights(RoutedExperts.Weights):
        """Weights of the experts, and the matrices U and D of the shared ones."""

        shared_up: Float[Array, "shared d_model d_ff"] = param(fan_in="d_model", batch_axis="shared", init="branch")
        shared_down: Float[Array, "shared d_ff d_model"] = param(fan_in="d_ff", batch_axis="shared", init="branch")

    exempt_from: ClassVar = {"devices": "each device balances the load of its own tokens"}
    experts: int = static(7, at_least=1)
    active: int = static(1, at_least=1)
    shared: int = static(1, at_least=1)
    balance: float = leaf(0.01, at_least=0)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        probability = jax.nn.softmax(linear(x, weights.router, wide=True))
        gates, experts = jax.lax.top_k(probability, self.active)
        chosen = jax.nn.one_hot(experts, self.experts).sum(-2)
        y = self.mix(weights, x, gates, experts)
        everywhere = jax.nn.relu(jnp.einsum("...d,edf->...ef", x, weights.shared_up))
        y = y + jnp.einsum("...ef,efd->...d", everywhere, weights.shared_down)
        share = valid / jnp.maximum(valid.sum(), 1)  # weight of each token in a mean without padding
        load = jnp.einsum("...,...e->e", share, chosen) / self.active
        balance = self.balance * self.experts * (load * jnp.einsum("...,...e->e", share, probability)).sum()
        return y, Aux(losses={"balance": balance}, statistics={"load": load})


VARIANTS: Mapping[str, Mapping[str, object]] = {"1 shared, 1 of 7": {"model.feed_forward": SharedExperts}}
