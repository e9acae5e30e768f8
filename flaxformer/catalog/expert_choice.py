"""Expert choice: each expert selects the tokens that it computes, so that all experts have the same load.

    y_t = Σ_e G_te relu(x_t U_e) D_e, with G = softmax over experts of x R at the `capacity` · T / experts tokens of the
    largest G of expert e, and 0 at the others

Family: feed-forward
Source: Zhou et al. 2022, "Mixture-of-Experts with Expert Choice Routing", arXiv:2202.09368, section 3.2.
Claim: convergence more than twice as fast as with the top-1 and top-2 gates of Switch Transformer and GShard.
Cost: `experts` networks of weights, of which a token uses `capacity` on average.
Verified: a loop over experts and tokens in float64.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, static
from flaxformer.catalog import ExpertNetworks
from flaxformer.nn.linear import linear

REASON = "an expert chooses among all tokens of the sequence"


class ExpertChoice(ExpertNetworks):
    """Each expert computes the capacity · T / experts tokens of a sequence (at least one) that it scores highest."""

    reads_others: ClassVar[bool] = True
    exempt_from: ClassVar = {
        "causality": REASON,
        "decoding": REASON,
        "padding": "the number of tokens of an expert follows the length with padding",
        "precision": "a choice of tokens is not continuous",
    }
    capacity: int = static(2, at_least=1)

    def active_sizes(self) -> dict[str, int]:
        return {"experts": min(self.capacity, self.experts)}

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        length = x.shape[-2]
        probability = jax.nn.softmax(linear(x, weights.router, wide=True)) * valid[..., None]
        count = min(length, max(1, self.capacity * length // self.experts))
        gate, chosen = jax.lax.top_k(jnp.swapaxes(probability, -1, -2), count)  # [*batch, experts, count]
        rows = jnp.take_along_axis(x[..., None, :, :], chosen[..., None], axis=-2)
        hidden = jax.nn.relu(jnp.einsum("...ecd,edf->...ecf", rows, weights.up))
        y = jnp.einsum("...ecf,efd->...ecd", gate[..., None].astype(x.dtype) * hidden, weights.down)

        def to_tokens(y: Array, chosen: Array) -> Array:
            return jnp.zeros((length, y.shape[-1]), probability.dtype).at[chosen].add(y)

        y = jax.vmap(to_tokens)(y.reshape(-1, *y.shape[-3:]), chosen.reshape(-1, *chosen.shape[-2:]))
        return y.reshape(x.shape).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"capacity 2": {"model.feed_forward": ExpertChoice}}
