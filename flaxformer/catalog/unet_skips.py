"""U-net skips: layers of the second half add the output of their mirror image in the first half to their input.

    x ← x + w_i · x_{L−1−i} before layer i ≥ L/2, with the output x_j of layer j, and a learned w_i, initially 1

Family: residuals and depth
Source: Jordan et al. 2024, "Modded-NanoGPT", github.com/KellerJordan/modded-nanogpt, record of 10 November 2024.
Claim: part of a record of the time to a validation loss of 3.28 on FineWeb: 7.2 minutes on 8 H100.
Cost: one weight per layer of the second half; the outputs of the first half in memory.
Verified: a loop over layers in float64; with w = 0, the plain rule.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, param


class UNetSkips(Residual):
    """The residual stream has x in place 0, and the output of layer j of the first half in place j + 1."""

    class Weights(Parameters):
        """w; only that of the first branch of a layer of the second half is read."""

        skip: Float[Array, ""] = param(init="ones", decay=False)

    exempt_from: ClassVar = {"weights": "w is read before layers of the second half alone"}

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        later = jnp.zeros((*x.shape[:-1], layers // 2, x.shape[-1]), x.dtype)
        return jnp.concatenate([x[..., None, :], later], axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        layer, half = 0 if context.layer is None else context.layer, x.shape[-2] - 1
        if context.branch > 0 or half == 0:
            return x[..., 0, :]
        place = context.layers - layer  # of the output of layer L − 1 − i
        saved = jnp.where(place <= half, x[..., jnp.clip(place, 0, half), :], 0)
        return (x[..., 0, :] + weights.skip * saved).astype(x.dtype)

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        layer, half = 0 if context.layer is None else context.layer, x.shape[-2] - 1
        new = self.read(weights, x, context) + update
        x = x.at[..., 0, :].set(new)
        if half == 0:
            return x
        place = jnp.minimum(layer + 1, half)
        return x.at[..., place, :].set(jnp.where(layer < half, new, x[..., place, :]))

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {"U-net skips": {"model.residual": UNetSkips}}
