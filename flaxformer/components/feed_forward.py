"""Feed-forward networks, which are applied to each token separately unless they say otherwise."""

from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Array, Float

from flaxformer.components.branch import Branch
from flaxformer.components.component import Context, OwnWeights
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import static
from flaxformer.nn.activations import ACTIVATIONS, activate
from flaxformer.nn.linear import linear


class FeedForward(Branch):
    """Base of the feed-forward networks; one that reads other tokens declares `reads_others`."""

    is_abstract: ClassVar[bool] = True


class Dense(FeedForward):
    """FFN(x) = σ(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    class Weights(Parameters):
        """W_1 is `up` and W_2 is `down`."""

        up: Float[Array, "d_model d_ff"] = param(fan_in="d_model", init="branch")
        down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff", init="branch")
        up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="bias")
        down_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="bias")

    d_ff: int | None = static(None, at_least=1)
    """Hidden width; None for four times d_model."""
    activation: str = static("relu", choices=ACTIVATIONS)
    bias: bool = static(True)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_ff": self.d_ff or 4 * model["d_model"]}

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        hidden = activate(self.activation, linear(x, weights.up), weights.up_bias)
        return linear(hidden, weights.down, weights.down_bias)


class Gated(Dense):
    """FFN(x) = (σ(x W_g + b_g) ⊙ (x W_1 + b_1)) W_2 + b_2, the gated linear units of Shazeer 2020."""

    class Weights(Parameters):
        """W_g is `gate`, W_1 is `up` and W_2 is `down`."""

        gate: Float[Array, "d_model d_ff"] = param(fan_in="d_model", init="branch")
        up: Float[Array, "d_model d_ff"] = param(fan_in="d_model", init="branch")
        down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff", init="branch")
        gate_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="bias")
        up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="bias")
        down_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="bias")

    def apply(self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        hidden = linear(x, weights.up, weights.up_bias)
        hidden = ACTIVATIONS[self.activation](linear(x, weights.gate, weights.gate_bias)) * hidden
        return linear(hidden, weights.down, weights.down_bias)
