"""Mixture of experts: a router selects a few of many feed-forward networks per token.

    y = Σ_e g_e(x) relu(x U_e) D_e, with gates g for the most probable experts and 0 for the others

Family: feed-forward
Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", arXiv:1701.06538, section 5; balance loss of
Fedus et al. 2022, "Switch Transformers", equation 4.
Claim: more weights at the FLOPs of a dense network, with lower perplexity in language modelling and
translation.
Cost: `experts` networks of weights, of which a token uses `active`.
Verified: a loop over tokens and experts in NumPy.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import (
    Aux,
    Context,
    FeedForward,
    Parameters,
    leaf,
    param,
    static,
)
from flaxformer.nn.experts import mix_experts
from flaxformer.nn.linear import linear


class ExpertNetworks(FeedForward):
    """Base of the mixtures: networks relu(x U_e) D_e, and a router."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """Router, and the matrices U and D of each expert."""

        router: Float[Array, "d_model experts"] = param(fan_in="d_model", role="output")
        up: Float[Array, "experts d_model d_ff"] = param(fan_in="d_model", batch_axis="experts", init="branch")
        down: Float[Array, "experts d_ff d_model"] = param(fan_in="d_ff", batch_axis="experts", init="branch")

    experts: int = static(8, at_least=1)
    d_ff: int = static(64, at_least=1)

    def mix(
        self,
        weights: Any,
        x: Float[Array, "*batch T D"],
        gates: Float[Array, "*batch T active"],
        chosen: Int[Array, "*batch T active"],
    ) -> Float[Array, "*batch T D"]:
        """Return Σ_a gates_a relu(x U_e) D_e, with the experts e = chosen_a of each token."""
        return mix_experts(x, weights.up, weights.down, gates, chosen)


class RoutedExperts(ExpertNetworks):
    """Base of the mixtures that compute a token by the same number of experts each."""

    is_abstract: ClassVar[bool] = True
    active: int = static(2, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.active > self.experts:
            yield f"active is {self.active}; expected at most the number of experts, {self.experts}"

    def active_sizes(self) -> dict[str, int]:
        return {"experts": self.active}


class MixtureOfExperts(RoutedExperts):
    """y = Σ_e g_e(x) relu(x U_e) D_e, with gates g for the `active` most probable experts, and 0 for the others.

    The gates are the router's probabilities, scaled to a sum of 1. The balance loss is balance · experts · Σ_e f_e P_e,
    where f_e is the share of the tokens that expert e gets, and P_e its mean probability.

    No token is dropped, so that the result of a token does not depend on other tokens.
    """

    exempt_from: ClassVar = {"devices": "each device balances the load of its own tokens"}
    balance: float = leaf(0.01, at_least=0)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        probability = jax.nn.softmax(linear(x, weights.router, wide=True))
        gate, chosen = jax.lax.top_k(probability, self.active)
        one_hot = jax.nn.one_hot(chosen, self.experts)  # [*batch, T, active, experts]
        y = self.mix(weights, x, gate / gate.sum(-1, keepdims=True), chosen)
        share = valid / jnp.maximum(valid.sum(), 1)  # weight of each token in a mean without padding
        load = jnp.einsum("...,...ae->e", share, one_hot) / self.active
        balance = self.balance * self.experts * (load * jnp.einsum("...,...e->e", share, probability)).sum()
        return y, Aux(losses={"balance": balance}, statistics={"load": load})


VARIANTS: Mapping[str, Mapping[str, object]] = {"experts": {"model.feed_forward": MixtureOfExperts}}
