"""Residual rules: how a branch's update joins the residual stream."""

from typing import Any

from jaxtyping import Array, Float

from flaxformer.component import Component, Context
from flaxformer.params import Parameters, param
from flaxformer.struct import leaf, static


class Residual(Component):
    """x + f(x); base of the other rules.

    A rule may keep more than one vector per token: `begin` makes its stream of the embeddings, `read` gives what a
    branch reads of it, `join` adds an update to it, and `end` gives what the last norm and the head read.
    """

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Any:
        """The residual stream before the first layer."""
        return x

    def read(self, weights: Any, stream: Any, context: Context) -> Float[Array, "*batch T D"]:
        """Return what a branch reads of the stream."""
        return stream

    def join(self, weights: Any, stream: Any, update: Float[Array, "*batch T D"], context: Context) -> Any:
        """The stream after a branch; of a branch without a skip connection, `stream` is zeros."""
        return stream + update

    def end(self, stream: Any) -> Float[Array, "*batch T D"]:
        """Return what the final norm reads of the stream after the last layer."""
        return stream

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        """Return the factor of the initial standard deviation of a branch's value, output and feed-forward matrices."""
        return 1.0


class ReZero(Residual):
    """x + g · f(x) with a learned number g per branch, at first 0 (Bachlechner et al. 2021)."""

    class Weights(Parameters):
        """The gain."""

        gain: Float[Array, ""] = param(value="initial", decay=False)

    initial: float = leaf(0.0)

    def join(self, weights: Any, stream: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return stream + _scaled(update, weights.gain)


class LayerScale(Residual):
    """x + g ⊙ f(x) with a learned vector g per branch, at first small (Touvron et al. 2021)."""

    class Weights(Parameters):
        """The gains."""

        gain: Float[Array, "d_model"] = param(value="initial", decay=False)

    initial: float = leaf(0.1)

    def join(self, weights: Any, stream: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return stream + _scaled(update, weights.gain)


class DeepNorm(Residual):
    """α x + f(x), with the matrices of f drawn β times as large; for post-norm (Wang et al. 2022, table 1).

    One stack of L layers: α = (2L)^¼, β = (8L)^−¼. A decoder of M layers that reads memory: α = (3M)^¼,
    β = (12M)^−¼; its encoder of N layers, with M in decoder_layers: α = 0.81 (N⁴M)^1/16, β = 0.87 (N⁴M)^−1/16.
    """

    decoder_layers: int | None = static(None, at_least=1)

    def join(self, weights: Any, stream: Array, update: Float[Array, "*batch T D"], context: Context) -> Array:
        return self.skip(context.layers, context.reads_source) * stream + update

    def skip(self, layers: int, reads_memory: bool) -> float:
        """α."""
        if self.decoder_layers is not None:
            return 0.81 * (layers**4 * self.decoder_layers) ** (1 / 16)
        return ((3 if reads_memory else 2) * max(layers, 1)) ** 0.25

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        if self.decoder_layers is not None:
            return 0.87 * (layers**4 * self.decoder_layers) ** (-1 / 16)
        return ((12 if reads_memory else 8) * max(layers, 1)) ** -0.25


def _scaled(update: Array, gain: Array) -> Array:
    """gain · update in the update's precision."""
    row = gain.reshape((1,) * (update.ndim - gain.ndim) + gain.shape)
    return (update * row).astype(update.dtype)
