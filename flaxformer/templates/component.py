"""NAME: a feed-forward network of your own, beside the package's.

Check: flaxformer check NAME.py (causality, padding, decoding, gradients …).
Run: flaxformer run NAME.py
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.config import Attention, Context, Dense, FeedForward, ModelConfig
from flaxformer.params import Parameters, param
from flaxformer.struct import leaf, static
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import AssociativeRecall
from flaxformer.training import AdamW, Run, Training


class KIND(FeedForward):
    """y = max(0, x W_1)^power W_2.

    A field is `static(...)` where another value is another program (a size, a choice), or `leaf(...)` where it is a
    number that the program reads, which arms of a study can vary without compiling again.
    """

    hidden: int = static(64, at_least=1)
    power: float = leaf(2.0, above=0)

    class Weights(Parameters):
        """Each weight is declared once: its axes (sizes of the model, or integer fields of this class) and fan-in."""

        up: Float[Array, "d_model hidden"] = param(fan_in="d_model")
        down: Float[Array, "hidden d_model"] = param(fan_in="hidden", init="branch")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        """The update of each token. Other components have other base classes: TokenMixer, Norm, Positions, Head …"""
        positive = jnp.maximum(x @ weights.up, 1e-6)
        return jnp.power(positive, self.power) @ weights.down


study = Study(
    name="NAME",
    question="Is a power of the rectified activations better than the activations themselves?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64, bias=False)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.feed_forward", {"relu": Dense(d_ff=64, bias=False), "own": KIND()})],
    seeds=range(5),
    claims=[Claim("the power has the lower loss", lower={"feed_forward": "own"}, than={"feed_forward": "relu"})],
    caveats=["One width, one learning rate, 300 steps."],
)
