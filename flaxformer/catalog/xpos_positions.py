"""xPos: rotary positions whose product of query and key falls exponentially with the distance.

    q_t ← ζ^(t / scale_base) ⊙ rotate(q_t, t),  k_s ← ζ^(−s / scale_base) ⊙ rotate(k_s, s)
    ζ_i = (2 i / d + γ) / (1 + γ) for the pair i of d entries, γ = 0.4

so that pair i of q_t · k_s has the factor ζ_i^((t − s) / scale_base).

Family: positions
Source: Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv:2212.10554, and its code in torchscale.
Claim: strong results in interpolation and extrapolation of length, together with blockwise causal attention in
    inference.
Cost: no weights; two more products per entry of a query or key.
Verified: a loop over queries and keys in float64 with the factor of the distance, written from the equations; gradients
    by finite differences of it.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Rotary, leaf


class XPos(Rotary):
    """Rotary positions with the factor ζ^(t / scale_base) on queries and its inverse on keys.

    A position of 600 times `scale_base` is out of the range of float32.

    scale_base: distance at which pair i falls by the factor ζ_i.
    offset: γ, the smallest ζ is offset / (1 + offset).
    """

    scale_base: float = leaf(512.0, above=0)
    offset: float = leaf(0.4, above=0)

    def rotate(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        return self.scaled(super().rotate(x, positions), positions)

    def rotate_key(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        return self.scaled(super().rotate(x, positions), -positions)

    def scaled(
        self, x: Float[Array, "*batch T N H"], exponents: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        """Return x times ζ^(exponents / scale_base) of the pair of each entry; entries that are not rotated stay."""
        width = self.rotated_width or x.shape[-1]
        wide = jnp.promote_types(x.dtype, jnp.float32)
        zeta = (jnp.arange(0, width, 2, dtype=wide) / width + self.offset) / (1 + self.offset)
        power = jnp.exp(exponents[..., None] / self.scale_base * jnp.log(zeta))[..., None, :]
        power = jnp.concatenate([power] * 2, -1) if self.layout == "split" else jnp.repeat(power, 2, axis=-1)
        unrotated = jnp.ones((*power.shape[:-1], x.shape[-1] - width), power.dtype)
        return (x * jnp.concatenate([power, unrotated], axis=-1)).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"xpos": {"model.positions": XPos}}
