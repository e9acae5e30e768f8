"""Which part of hyper-connections helps: what a branch reads, what it writes, or how the streams mix?

Published: lower loss than the plain residual connection in models of 1B and 7B weights (Zhu et al.
    2024, "Hyper-Connections", arXiv:2409.19606). In a comparison of 20 modifications at 1.2B weights, six make it worse
    (Zhao et al. 2026, arXiv:2605.20798); public notes count hyper-connections among them, not checked at the source.
Question: which of the three learned parts of the static form gives the gain, and does depth matter?
Design: four streams, with all parts learned, and with each part fixed at its initial value: α selects one stream for
    each layer, A is 0, β is 1. With all three fixed, the rule is the plain one. Two depths.
Result: the static form lowers the loss of 12 layers by 0.021 nats [0.009, 0.051], at 1.08 times the FLOPs, and not
    that of 4 layers (-0.006 [-0.033, 0.004]); that depth matters, 0.027 [0.005, 0.041], is inconclusive after Holm.
Cause: open. Fixing what a branch reads or writes changes the loss of 12 layers by less than 0.002; fixing how the
    streams mix takes half of the gain, 0.011 [0.002, 0.041], which is inconclusive after Holm (p = 0.13) with 5 seeds.
Command: flaxformer run experiments/inversions/hyper_connections.py
Cost: 50 runs in 10 compiled programs; 25 minutes on 2 busy CPU cores.
"""

from typing import Any

import jax
import jax.numpy as jnp

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    Linear,
    ModelConfig,
    Residual,
    Rotary,
    Run,
    StandardLibrary,
    Study,
    Training,
    static,
)
from flaxformer.catalog import HyperConnections


class PartlyFixed(HyperConnections):
    """Hyper-connections of which one part keeps its initial value: "read" (α), "mix" (A) or "write" (β)."""

    fixed: str = static("read", choices=("read", "mix", "write"))

    def read(self, weights: Any, x: jax.Array, context: Context) -> jax.Array:
        return super().read(self.partly_fixed(weights), x, context)

    def join(self, weights: Any, x: jax.Array, update: jax.Array, context: Context) -> jax.Array:
        return super().join(self.partly_fixed(weights), x, update, context)

    def partly_fixed(self, weights: Any) -> Any:
        """Return the weights with the initial value of the fixed part."""
        initial = jnp.ones_like if self.fixed == "write" else jnp.zeros_like
        return weights.replace(**{self.fixed: initial(getattr(weights, self.fixed))})


PLAIN, FULL = {"residual": "plain"}, {"residual": "all learned"}
FIXED = {"read": "α fixed", "mix": "A fixed", "write": "β fixed"}
study = Study(
    name="inversion_hyper_connections",
    question="Which part of hyper-connections helps: what a branch reads, what it writes, or how the streams mix?",
    baseline=Run(
        model=ModelConfig(
            layers=4, d_model=48, attention=Attention(heads=4), feed_forward=Dense(d_ff=144), positions=Rotary()
        ),
        task=StandardLibrary(length=64, batch_size=16),
        optimizer=AdamW(learning_rate=6e-3, warmup_steps=30, weight_decay=0.1, decay=Linear()),
        training=Training(steps=300, evaluate_every=50),
    ),
    axes=[
        Axis(
            "model.residual",
            {"plain": Residual(), "all learned": HyperConnections()}
            | {label: PartlyFixed(fixed=part) for part, label in FIXED.items()},
        ),
        Axis("model.layers", {"4": 4, "12": 12}),
    ],
    seeds=range(5),
    metric="test_loss",
    claims=[
        *(
            Claim(
                f"hyper-connections lower the loss of {depth} layers", lower=FULL, than=PLAIN, where={"layers": depth}
            )
            for depth in ("4", "12")
        ),
        Claim(
            "they help 12 layers more than 4",
            lower=FULL,
            than=PLAIN,
            where={"layers": "12"},
            more_than_where={"layers": "4"},
        ),
        *(
            Claim(
                f"in 12 layers, the learned {part} is needed: the loss is higher with {label}",
                higher={"residual": label},
                than=FULL,
                where={"layers": "12"},
            )
            for part, label in FIXED.items()
        ),
    ],
    caveats=[
        "Models of 0.1 to 0.3 M weights, 300 steps, one learning rate for all.",
        "The static form; the paper's dynamic form, whose weights depend on the token, gains more.",
    ],
)
