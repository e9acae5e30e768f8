"""Residual rules: how the update of a branch is added to the residual stream."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import Component, Context, OwnWeights
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, static


class Residual(Component):
    """x + f(x); base of the other rules.

    A rule may keep more than one vector per token. `begin` turns the embeddings into its residual stream, `read`
    returns the input of a branch, `join` adds an update, and `end` returns the input of the final norm and the head.
    """

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> PyTree:
        """Return the residual stream before the first layer."""
        return x

    def read(self, weights: OwnWeights, x: PyTree, context: Context) -> Float[Array, "*batch T D"]:
        """Return the input of a branch."""
        return x

    def join(self, weights: OwnWeights, x: PyTree, update: Float[Array, "*batch T D"], context: Context) -> PyTree:
        """Return the residual stream after a branch; without a skip connection, `x` is zeros."""
        return x + update

    def end(self, x: PyTree) -> Float[Array, "*batch T D"]:
        """Return the input of the final norm, from the residual stream after the last layer."""
        return x

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        """Return the factor on the initial standard deviation of the value, output and feed-forward matrices."""
        return 1.0


class ReZero(Residual):
    """x + g · f(x) with a learned scalar g per branch, initially 0 (Bachlechner et al. 2021)."""

    class Weights(Parameters):
        """Scalar gain g."""

        gain: Float[Array, ""] = param(value="initial", decay=False)

    initial: float = leaf(0.0)

    def join(self, weights: Weights, x: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return x + _scale(update, weights.gain)


class LayerScale(Residual):
    """x + g ⊙ f(x) with a learned vector g per branch, initially small (Touvron et al. 2021)."""

    class Weights(Parameters):
        """Vector gain g."""

        gain: Float[Array, "d_model"] = param(value="initial", decay=False)

    initial: float = leaf(0.1)

    def join(self, weights: Weights, x: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return x + _scale(update, weights.gain)


class DepthScaled(Residual):
    """x + (base_layers / layers)^exponent · f(x), so that the sum over all layers keeps its size.

    exponent: 1 (CompleteP, Dey et al. 2025), or ½ (depth-μP, Yang et al. 2024).
    base_layers: number of layers at which the factor is 1.
    """

    exponent: float = leaf(1.0)
    base_layers: int = static(1, at_least=1)

    def join(self, weights: Parameters, x: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return x + _scale(update, (self.base_layers / max(context.layers, 1)) ** jnp.asarray(self.exponent))


class DeepNorm(Residual):
    """α x + f(x), with the initial matrices of f multiplied by β; for post-norm (Wang et al. 2022, table 1).

    A single stack of L layers: α = (2L)^¼, β = (8L)^−¼. A decoder of M layers with cross-attention: α = (3M)^¼,
    β = (12M)^−¼. Its encoder of N layers, with M as `decoder_layers`: α = 0.81 (N⁴M)^1/16, β = 0.87 (N⁴M)^−1/16.
    """

    decoder_layers: int | None = static(None, at_least=1)

    def join(self, weights: Parameters, x: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return self.skip_gain(context.layers, context.reads_source) * x + update

    def skip_gain(self, layers: int, reads_memory: bool) -> float:
        """Return α, the factor on the residual stream."""
        if self.decoder_layers is not None:
            return 0.81 * (layers**4 * self.decoder_layers) ** (1 / 16)
        return ((3 if reads_memory else 2) * max(layers, 1)) ** 0.25

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        if self.decoder_layers is not None:
            return 0.87 * (layers**4 * self.decoder_layers) ** (-1 / 16)
        return ((12 if reads_memory else 8) * max(layers, 1)) ** -0.25


def _scale(update: Array, gain: Array) -> Array:
    """Return gain · update in the dtype of the update."""
    row = gain.reshape((1,) * (update.ndim - gain.ndim) + gain.shape)
    return (update * row).astype(update.dtype)
