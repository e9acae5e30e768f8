"""Learned activation: Swish, x σ(β x), with one β per hidden unit.

Claim: a feed-forward network with learned Swish reaches a lower loss than one with ReLU.
Source: Ramachandran et al. 2017, "Searching for Activation Functions", section 4.
Command: flaxformer run examples/components/learned_activation.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported; a small difference between learned and fixed β (not part of the claim).
"""

import jax
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    FeedForward,
    ModelConfig,
    Parameters,
    Run,
    StandardLibrary,
    Study,
    Training,
    leaf,
    param,
    static,
)
from flaxformer.nn.linear import linear


class LearnedSwish(FeedForward):
    """FFN(x) = (h ⊙ σ(β ⊙ h)) W_2 with h = x W_1 and a learned vector β, initially `initial`."""

    class Weights(Parameters):
        """W_1 is `up`, W_2 is `down` and β is `slope`."""

        up: Float[Array, "d_model d_ff"] = param(fan_in="d_model", init="branch")
        slope: Float[Array, "d_ff"] = param(value="initial", decay=False)
        down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff", init="branch")

    d_ff: int = static(256, at_least=1)
    initial: float = leaf(1.0)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        hidden = linear(x, weights.up)
        slope = weights.slope.reshape((1,) * (x.ndim - 1) + (-1,))
        hidden = (hidden * jax.nn.sigmoid(slope * hidden)).astype(x.dtype)
        return linear(hidden, weights.down)


def network(activation: str) -> Dense:
    """Return the network with a fixed activation, also without biases."""
    return Dense(d_ff=256, activation=activation, bias=False)


study = Study(
    name="learned_activation",
    question="Does a learned activation reach a lower loss than a fixed one?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64, attention=Attention(heads=4), feed_forward=network("relu")),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[
        Axis(
            "model.feed_forward",
            {"ReLU": network("relu"), "Swish": network("silu"), "learned Swish": LearnedSwish(d_ff=256)},
            name="activation",
        ),
    ],
    claims=[
        Claim(
            "learned Swish reaches a lower loss than ReLU",
            lower={"activation": "learned Swish"},
            than={"activation": "ReLU"},
        ),
    ],
    caveats=["One learning rate for all; the learned slopes add 256 weights per layer, 0.5 % of the layer."],
)
