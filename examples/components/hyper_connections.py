"""Hyper-connections: several residual streams, which every branch reads and updates with learned weights.

Claims: four streams reach a lower loss than the plain residual connection, and than a single stream with the same
learned weights.
Source: Zhu et al. 2024, "Hyper-Connections", section 2 (the static form, with its initial values).
Command: flaxformer run examples/components/hyper_connections.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported, by a small margin: the paper's models are 12 to 16 layers deep, these have four.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    ModelConfig,
    Parameters,
    Residual,
    Run,
    StandardLibrary,
    Study,
    Training,
    param,
    static,
)


class HyperConnections(Residual):
    """n residual streams H per token: a branch f reads α H, and H ← (I + A) H + β f(α H).

    Initially, A is 0, β is 1, and α selects a single stream, a different one in each layer; the sum of the streams is
    then n times the stream of the plain rule.
    """

    class Weights(Parameters):
        """A is `mix`, β is `write`, and α is `read` plus its initial value."""

        read: Float[Array, "streams"] = param(init="zeros", decay=False)
        mix: Float[Array, "streams streams"] = param(init="zeros", decay=False)
        write: Float[Array, "streams"] = param(init="ones", decay=False)

    streams: int = static(4, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.repeat(x[..., None, :], self.streams, axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        initial = jax.nn.one_hot(context.layer % self.streams, self.streams)
        return jnp.einsum("n,...nd->...d", initial + weights.read, x).astype(x.dtype)

    def join(
        self,
        weights: Weights,
        x: Float[Array, "*batch T n D"],
        update: Float[Array, "*batch T D"],
        context: Context,
    ) -> Float[Array, "*batch T n D"]:
        mixed = jnp.einsum("mn,...nd->...md", weights.mix, x)
        written = jnp.einsum("n,...d->...nd", weights.write, update)
        return (x + mixed + written).astype(x.dtype)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x.sum(-2)


study = Study(
    name="hyper_connections",
    question="Do several residual streams with learned connections train better than one?",
    baseline=Run(
        model=ModelConfig(layers=4, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[
        Axis(
            "model.residual",
            {"plain": Residual(), "1 stream": HyperConnections(streams=1), "4 streams": HyperConnections(streams=4)},
        ),
    ],
    claims=[
        Claim("four streams beat the plain rule", lower={"residual": "4 streams"}, than={"residual": "plain"}),
        Claim("four streams beat one", lower={"residual": "4 streams"}, than={"residual": "1 stream"}),
    ],
    caveats=["This is the static form; the paper's dynamic form, whose weights depend on the token, gains more."],
)
