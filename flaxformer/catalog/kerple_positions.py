"""Kerple: a learned kernel of the distance biases the logits of each head.

    logarithmic  −r_1 log(1 + r_2 |t − s|),  r_1, r_2 > 0
    power        −r_1 |t − s|^r_2,           r_1 > 0, 0 < r_2 ≤ 2

Family: positions
Source: Chi, Fan, Ramadge and Rudnicky 2022, "KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation", NeurIPS 2022, arXiv:2205.09921; bounds of its code. There, r_1 and r_2 are drawn uniformly, from 0
    to 2 and from 0 to 1 or the reverse; here they begin at the mean.
Claim: the logarithmic form extrapolates well to longer sequences on three data sets of language modelling.
Cost: two weights per head, shared by all layers; a logarithm or a power per pair of tokens and head, once for all
    layers.
Verified: a loop over queries and keys in float64, written from the equations; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Parameters, Positions, param

LEAST = 1e-2


class KerpleLog(Positions):
    """−r_1 log(1 + r_2 |t − s|) added to the logits of each head; both weights are kept at 0.01 or more."""

    class Weights(Parameters):
        """r_1 and r_2 of each head."""

        first: Float[Array, "heads"] = param(value=1.0, decay=False)
        second: Float[Array, "heads"] = param(value=0.5, decay=False)

    def bias(
        self,
        weights: Weights,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        bidirectional: bool,
    ) -> Float[Array, "*batch N T S"]:
        distance = jnp.abs(query_positions[..., :, None] - key_positions[..., None, :])[..., None, :, :]
        first, second = (jnp.maximum(x, LEAST)[:, None, None] for x in (weights.first, weights.second))
        return -first * jnp.log1p(second * distance)


class KerplePower(Positions):
    """−r_1 |t − s|^r_2 added to the logits of each head; r_1 is kept at 0.01 or more, r_2 between 0.01 and 2."""

    class Weights(Parameters):
        """r_1 and r_2 of each head."""

        first: Float[Array, "heads"] = param(value=0.5, decay=False)
        second: Float[Array, "heads"] = param(value=1.0, decay=False)

    def bias(
        self,
        weights: Weights,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        bidirectional: bool,
    ) -> Float[Array, "*batch N T S"]:
        distance = jnp.abs(query_positions[..., :, None] - key_positions[..., None, :])[..., None, :, :]
        first, second = jnp.maximum(weights.first, LEAST), jnp.clip(weights.second, LEAST, 2)
        power = jnp.exp(second[:, None, None] * jnp.log(jnp.maximum(distance, 1).astype(second.dtype)))
        return jnp.where(distance > 0, -first[:, None, None] * power, 0)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "kerple, logarithmic": {"model.positions": KerpleLog},
    "kerple, power": {"model.positions": KerplePower},
}
