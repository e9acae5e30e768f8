"""User-defined optimizer: Signum, whose update is the sign of the momentum.

Claim: at the rates below, Signum reaches a lower loss than SGD with the same momentum.
Source: Bernstein et al. 2018, algorithm 2 (Signum); Kunstner et al. 2023 (on Transformers, sign descent closes most of
the gap between SGD and Adam).
Command: flaxformer run examples/components/own_optimizer.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported; Signum close to AdamW (not part of the claim).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from flaxformer import (
    SGD,
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
    leaf,
)
from flaxformer.training.schedule import Optimizer


class Signum(Optimizer):
    """sign(m) with the running mean m ← momentum · m + (1 − momentum) · g of the gradient.

    Rate, warm-up, decay, clipping and weight decay are inherited. All numbers may be traced, so that the shapes of the
    state must not depend on them.
    """

    momentum: float = leaf(0.9, at_least=0, below=1)

    def direction(self) -> optax.GradientTransformation:
        def init(params: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, params)

        def update(gradient: Any, mean: Any, params: Any = None) -> tuple[Any, Any]:
            mean = jax.tree.map(lambda m, g: self.momentum * m + (1 - self.momentum) * g, mean, gradient)
            return jax.tree.map(jnp.sign, mean), mean

        return optax.GradientTransformation(init, update)


study = Study(
    name="own_optimizer",
    question="How close does the sign of the gradient come to Adam?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[
        Axis(
            "optimizer",
            {
                "AdamW": AdamW(learning_rate=3e-3, warmup_steps=50),
                "Signum": Signum(learning_rate=1e-3, warmup_steps=50),  # as for Lion, a third of AdamW's
                "SGD": SGD(learning_rate=0.1, warmup_steps=50, clip=1.0),
            },
        ),
    ],
    claims=[Claim("Signum reaches a lower loss than SGD", lower={"optimizer": "Signum"}, than={"optimizer": "SGD"})],
    caveats=["One rate per optimizer, and none of them is tuned."],
)
