"""Loss-free balancing: a bias per expert in the choice of experts, raised for those with less than the mean load.

    y = Σ_e g_e E_e(x), with g_e = s_e = σ(x R)_e for the largest s_e + b_e, and 0 for the others;
    after a step, b_e ← b_e + rate · sign(mean load − load_e)

Family: feed-forward
Source: Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", arXiv:2408.15664.
Claim: better perplexity and better balance than with an auxiliary loss, in models of up to 3B weights.
Cost: `experts` networks of weights, of which a token uses `active`; all experts compute all tokens here.
Verified: a loop over tokens and experts in float64; the change of the bias in a training step.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Aux, Context, FeedForward, Parameters, leaf, param, static
from flaxformer.nn.linear import linear


class LossFreeBalancing(FeedForward):
    """The `active` experts with the largest s + b of `experts`, with gates s; each is relu(x U) D."""

    class Weights(Parameters):
        """Router, bias b, and the matrices U and D of each expert."""

        router: Float[Array, "d_model experts"] = param(fan_in="d_model", role="output")
        bias: Float[Array, "experts"] = param(init="zeros", decay=False, trained=False)
        up: Float[Array, "experts d_model d_ff"] = param(fan_in="d_model", batch_axis="experts", init="branch")
        down: Float[Array, "experts d_ff d_model"] = param(fan_in="d_ff", batch_axis="experts", init="branch")

    mixes_batch: ClassVar[bool] = True
    experts: int = static(8, at_least=1)
    active: int = static(2, at_least=1)
    d_ff: int = static(64, at_least=1)
    rate: float = leaf(0.001, at_least=0)

    def problems(self) -> Iterator[str]:
        if self.active > self.experts:
            yield f"active is {self.active}; expected at most the number of experts, {self.experts}"

    def active_sizes(self) -> dict[str, int]:
        return {"experts": self.active}

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        score = jax.nn.sigmoid(linear(x, weights.router, wide=True))
        chosen = jax.nn.one_hot(jax.lax.top_k(score + weights.bias, self.active)[1], self.experts).sum(-2)
        hidden = jax.nn.relu(jnp.einsum("...d,edf->...ef", x, weights.up))
        gates = (chosen * score).astype(x.dtype)
        y = jnp.einsum("...ef,efd->...d", gates[..., None] * hidden, weights.down)
        load = jnp.einsum("...,...e->e", valid / jnp.maximum(valid.sum(), 1), chosen) / self.active
        if not context.training:
            return y, Aux(statistics={"load": load})
        bias = weights.bias + self.rate * jnp.sign(load.mean() - load)
        return y, Aux(statistics={"load": load}, weights={"bias": bias.astype(weights.bias.dtype)})


VARIANTS: Mapping[str, Mapping[str, object]] = {"2 of 8, biased": {"model.feed_forward": LossFreeBalancing}}
