"""Mixture of depths: a block computes the tokens that its router scores highest, and the others pass unchanged.

    x_t + r_t f(X̃)_t for the `capacity` · T tokens of a sequence with the highest r_t = x_t w, and x_t for others;
    X̃ has these tokens alone, and f is the attention, then the feed-forward network

Family: residuals and depth
Source: Raposo et al. 2024, "Mixture-of-Depths: Dynamically allocating compute in transformer-based language models",
arXiv:2404.02258, section 3; every second block with 12.5% of the tokens.
Claim: at equal FLOPs and training time, the loss of the baseline, with a fraction of the FLOPs per forward pass.
Cost: d_model weights per block, which computes `capacity` of the tokens.
Verified: a loop over tokens and heads in float64.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Attention, Aux, Block, Context, Dense, param, static
from flaxformer.nn.linear import linear

REASON = "which tokens a block computes depends on the whole sequence"


def gather(x: Float[Array, "*batch T D"], index: Int[Array, "*batch n"]) -> Float[Array, "*batch n D"]:
    """Return some of the tokens."""
    return jnp.take_along_axis(x, index[..., None], axis=-2)


def scatter(y: Float[Array, "*batch n D"], index: Int[Array, "*batch n"], x: Array) -> Float[Array, "*batch T D"]:
    """Return the vectors of some of the tokens of x, and zeros for others."""
    places = jnp.broadcast_to(index[..., None], y.shape)
    return jnp.put_along_axis(jnp.zeros_like(x), places, y.astype(x.dtype), axis=-2, inplace=False)


class RoutedAttention(Attention):
    """Attention among the tokens with the highest scores, times these, which a `RoutedNetwork` of the block reads."""

    exempt_from: ClassVar = dict.fromkeys(("causality", "decoding", "padding", "precision"), REASON)
    capacity: float = static(0.125, above=0, at_most=1)

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the router w."""

        router: Float[Array, "d_model outs"] = param(fan_in="d_model", role="output")

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"outs": 1}

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        shape = (*x.shape[:-2], max(1, int(self.capacity * x.shape[-2])))
        score = jnp.zeros(shape, jnp.promote_types(x.dtype, jnp.float32))
        return {"chosen": jnp.zeros(shape, jnp.int32), "score": score}

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        every = linear(x, weights.router, wide=True)[..., 0]
        every = every if context.valid is None else jnp.where(context.valid, every, -jnp.inf)
        chosen = jnp.sort(jax.lax.top_k(every, context.carried["chosen"].shape[-1])[1], axis=-1)
        score = jnp.take_along_axis(every, chosen, axis=-1)
        score = jnp.where(jnp.isfinite(score), score, 0)
        y, aux = super().apply(weights, gather(x, chosen), context.take(chosen))
        carried = {"chosen": chosen.astype(jnp.int32), "score": score.astype(context.carried["score"].dtype)}
        return scatter(y * score[..., None], chosen, x), aux.merge(Aux(carried=carried))


class RoutedNetwork(Dense):
    """Feed-forward network of the tokens that the block's `RoutedAttention` has chosen, times their scores."""

    exempt_from: ClassVar = dict.fromkeys(("causality", "decoding", "padding", "precision"), REASON)
    reads_others: ClassVar[bool] = True

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        chosen, score = context.carried["chosen"], context.carried["score"]
        y = super().apply(weights, gather(x, chosen), context.take(chosen))
        return scatter(y * score[..., None], chosen, x)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "an eighth of the tokens": {
        "model.pattern": (Block(attention=RoutedAttention, feed_forward=RoutedNetwork), Block())
    }
}
