"""Hyper-connections: several residual streams, which every branch reads from and writes to by learned weights.

Claims: four streams reach a lower loss than the plain residual connection, and than a single stream with the same
learned weights.
Source: Zhu et al. 2024, "Hyper-Connections", section 2 (the static form, with its initial values).
Command: flaxformer run examples/components/hyper_connections.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported, by a small margin: the paper's models are 12 to 16 layers deep, these have four.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.config import Attention, Context, Dense, ModelConfig, Residual
from flaxformer.params import Parameters, param
from flaxformer.struct import static
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import StandardLibrary
from flaxformer.training import AdamW, Run, Training


class HyperConnections(Residual):
    """n residual streams H per token: a branch f reads α H, and H ← (I + A) H + β f(α H).

    At first A is 0, β is 1, and α takes one stream, another in each layer: the sum of the streams is then that of the
    plain rule, up to the factor n.
    """

    class Weights(Parameters):
        """A is `mix`, β is `write`, and α is `read` added to its initial value."""

        read: Float[Array, "streams"] = param(init="zeros", decay=False)
        mix: Float[Array, "streams streams"] = param(init="zeros", decay=False)
        write: Float[Array, "streams"] = param(init="ones", decay=False)

    streams: int = static(4, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.repeat(x[..., None, :], self.streams, axis=-2)

    def read(self, weights: Any, stream: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        own = jax.nn.one_hot(context.layer % self.streams, self.streams)
        return jnp.einsum("n,...nd->...d", own + weights.read, stream).astype(stream.dtype)

    def join(
        self, weights: Any, stream: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        mixed = jnp.einsum("mn,...nd->...md", weights.mix, stream)
        written = jnp.einsum("n,...d->...nd", weights.write, update)
        return (stream + mixed + written).astype(stream.dtype)

    def end(self, stream: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return stream.sum(-2)


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
    caveats=["The static form: the paper's dynamic one, whose weights depend on the token, gains more."],
)
