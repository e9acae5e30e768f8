"""The feed-forward layer: its weights, and what it computes."""

from jaxtyping import Array, Float

from flaxformer.config import ModelConfig
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.params import Parameters, param


class FeedForward(Parameters):
    """The two-layer network applied to each token alone; `gate` in the gated linear units of Shazeer 2020."""

    gate: Float[Array, "d_model d_ff"] | None = param(fan_in="d_model", init="branch", when="has_gate")
    up: Float[Array, "d_model d_ff"] = param(fan_in="d_model", init="branch")
    down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff", init="branch")
    gate_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="has_gate_bias")
    up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="feed_forward_bias")
    down_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="feed_forward_bias")


def feed_forward(params: FeedForward, config: ModelConfig, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """FFN(x) = σ(x W_1 + b_1) W_2 + b_2; gated, (σ(x W_g + b_g) ⊙ (x W_1 + b_1)) W_2 + b_2."""
    activation = ACTIVATIONS[config.activation]
    hidden = linear(x, params.up, params.up_bias)
    if params.gate is None:
        hidden = activation(hidden)
    else:
        hidden = activation(linear(x, params.gate, params.gate_bias)) * hidden
    return linear(hidden, params.down, params.down_bias)
