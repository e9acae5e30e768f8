"""NAME: a feed-forward component of your own, compared with the one of the package.

Check: flaxformer check NAME.py (causality, padding, decoding, gradients …).
Run: flaxformer run NAME.py
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    FeedForward,
    ModelConfig,
    Parameters,
    Run,
    Study,
    Training,
    leaf,
    param,
    static,
)


class KIND(FeedForward):
    """y = max(0, x W_1)^power W_2.

    Declare a field as `static(...)` if a new value needs a new program (a size, a choice), and as `leaf(...)` if it is
    a number that the program reads; arms of a study can then vary it without compiling again.
    """

    hidden: int = static(64, at_least=1)
    power: float = leaf(2.0, above=0)

    class Weights(Parameters):
        """Weights, each declared once with its axes (sizes of the model or integer fields of this class) and fan-in."""

        up: Float[Array, "d_model hidden"] = param(fan_in="d_model")
        down: Float[Array, "hidden d_model"] = param(fan_in="hidden", init="branch")

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        """Return the update of each token. Base classes of other components: TokenMixer, Norm, Positions, Head …"""
        positive = jnp.maximum(x @ weights.up, 1e-6)
        return jnp.power(positive, self.power) @ weights.down


study = Study(
    name="NAME",
    question="Do squared ReLU activations train better than ReLU?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64, bias=False)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.feed_forward", {"relu": Dense(d_ff=64, bias=False), "own": KIND()})],
    seeds=range(5),
    claims=[Claim("squared ReLU has the lower loss", lower={"feed_forward": "own"}, than={"feed_forward": "relu"})],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
