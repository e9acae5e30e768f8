"""FIRE: a learned function of the relative distance, divided by a function of the query's position, biases the logits.

    b(t, s) = f(ψ(t − s) / ψ(max(t, L))),  ψ(x) = log(|c x| + 1),  f(z) = relu(z w_1 + b_1) W_2 + b_2

with a learned c and L, and one output of f per head. The ratio is in [0, 1] at any length.

Family: positions
Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context Transformers", ICLR 2024,
    arXiv:2310.04418, with one function for all layers.
Claim: better generalisation to longer contexts, in zero-shot language modelling and on benchmarks of long texts, than
    T5's buckets, ALiBi and Kerple, which it can represent.
Cost: (2 + N) hidden + N + 2 weights for N heads, shared by all layers; about 2 N hidden operations per pair of tokens,
    once for all layers.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Parameters, Positions, leaf, param, static


class Fire(Positions):
    """f(ψ(|t − s|) / ψ(max(t, L))) added to the logits, with f a network of one hidden layer.

    hidden: width of the hidden layer.
    initial_slope: c at the start.
    initial_length: L at the start.
    """

    class Weights(Parameters):
        """Network f, c, and L divided by its initial value."""

        up: Float[Array, "hidden"] = param(std=1.0, decay=False)
        up_bias: Float[Array, "hidden"] = param(init="zeros", decay=False)
        down: Float[Array, "hidden heads"] = param(fan_in="hidden")
        down_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        slope: Float[Array, ""] = param(value="initial_slope", decay=False)
        relative_length: Float[Array, ""] = param(value=1.0, decay=False)

    hidden: int = static(32, at_least=1)
    initial_slope: float = leaf(0.1, above=0)
    initial_length: float = leaf(512.0, above=0)

    def bias(
        self,
        weights: Weights,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        bidirectional: bool,
    ) -> Float[Array, "*batch N T S"]:
        def psi(x: Array) -> Array:
            return jnp.log1p(jnp.abs(weights.slope) * x)

        length = jnp.abs(weights.relative_length * self.initial_length)
        distance = jnp.abs(query_positions[..., :, None] - key_positions[..., None, :]).astype(length.dtype)
        longest = jnp.maximum(query_positions.astype(length.dtype), length)[..., :, None]
        hidden = jax.nn.relu((psi(distance) / psi(longest))[..., None] * weights.up + weights.up_bias)
        return jnp.moveaxis(hidden @ weights.down + weights.down_bias, -1, -3)


VARIANTS: Mapping[str, Mapping[str, object]] = {"fire": {"model.positions": Fire}}
