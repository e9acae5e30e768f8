"""Switch routing: each token goes to one expert, which takes tokens up to its capacity and drops later ones.

    y = p_e(x) relu(x U_e) D_e for e = argmax p(x), or 0 if `capacity` · T / experts earlier tokens chose the same e

Family: feed-forward
Source: Fedus et al. 2022, "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient
Sparsity", arXiv:2101.03961, section 2; balance loss of equation 4.
Claim: pre-training up to 7 times as fast as that of T5 models with the same computational resources.
Cost: `experts` networks of weights, of which a token uses one.
Verified: a loop over tokens in float64, with tokens that are dropped.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Aux, Context, leaf
from flaxformer.catalog import ExpertNetworks
from flaxformer.nn.linear import linear

REASON = "the capacity of an expert follows the length of the sequence"


class SwitchRouting(ExpertNetworks):
    """One expert per token; an expert takes the first ⌈capacity · T / experts⌉ tokens of a sequence that choose it."""

    reads_others: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    exempt_from: ClassVar = {
        "devices": "each device balances the load of its own tokens",
        "causality": REASON,
        "decoding": REASON,
        "precision": "a choice between experts is not continuous",
    }
    capacity: float = leaf(1.25, above=0)
    balance: float = leaf(0.01, at_least=0)

    def active_sizes(self) -> dict[str, int]:
        return {"experts": 1}

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        probability = jax.nn.softmax(linear(x, weights.router, wide=True))
        chosen = jax.nn.one_hot(probability.argmax(-1), self.experts) * valid[..., None]
        limit = jnp.ceil(self.capacity * valid.sum(-1) / self.experts)[..., None, None]
        kept = jnp.where(jnp.cumsum(chosen, axis=-2) <= limit, chosen, 0)
        expert = probability.argmax(-1)[..., None]
        y = self.mix(weights, x, jnp.take_along_axis(kept * probability, expert, axis=-1), expert)
        share = valid / jnp.maximum(valid.sum(), 1)  # weight of each token in a mean without padding
        load, mean = (jnp.einsum("...,...e->e", share, z) for z in (chosen, probability))
        dropped = jnp.einsum("...,...->", share, 1 - kept.sum(-1))
        balance = self.balance * self.experts * (load * mean).sum()
        return y, Aux(losses={"balance": balance}, statistics={"load": load, "dropped": dropped})


VARIANTS: Mapping[str, Mapping[str, object]] = {"capacity 1.25": {"model.feed_forward": SwitchRouting}}
