"""Contextual positions (CoPE): the distance of a key is a sum of gates that depend on the query.

Claim: on source code, contextual positions reach a lower loss than learned absolute ones.
Source: Golovneva et al. 2024, "Contextual Position Encoding: Learning to Count What's Important".
Command: flaxformer run examples/components/contextual_positions.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported, as in the paper's table of perplexities on code.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LearnedPositions,
    ModelConfig,
    Parameters,
    Positions,
    Run,
    StandardLibrary,
    Study,
    Training,
    param,
    static,
)


class ContextualPositions(Positions):
    """q_t · e[p_ts] added to the logits, with the position p_ts = Σ of the gates σ(q_t · k_r / √d) over s ≤ r ≤ t.

    e has one vector per integer position up to `farthest`, which is also the largest position; between two positions,
    the product is interpolated. All layers and heads share e. For causal attention.
    """

    class Weights(Parameters):
        """Table e, with one row per integer position."""

        table: Float[Array, "rows d_head"] = param(init="zeros", decay=False)

    farthest: int = static(16, at_least=1)

    def sizes(self, model: Any) -> dict[str, int]:
        return {"rows": self.farthest + 1}

    def query_bias(
        self,
        weights: Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S N H"],
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        mask: Bool[Array, "*batch N T S"],
    ) -> Float[Array, "*batch N T S"]:
        wide = jnp.promote_types(query.dtype, jnp.float32)
        query, key = query.astype(wide), key.astype(wide)
        logits = jnp.einsum("...tnh,...snh->...nts", query, key) * query.shape[-1] ** -0.5
        gates = jnp.where(mask, jax.nn.sigmoid(logits), 0)
        position = jnp.minimum(jnp.flip(jnp.flip(gates, -1).cumsum(-1), -1), self.farthest)
        by_row = jnp.einsum("...tnh,ph->...ntp", query, weights.table)
        below = jnp.floor(position)
        lower, upper = (
            jnp.take_along_axis(by_row, row.astype(jnp.int32), axis=-1) for row in (below, jnp.ceil(position))
        )
        return lower + (position - below) * (upper - lower)


study = Study(
    name="contextual_positions",
    question="Do contextual positions help a model of source code?",
    baseline=Run(
        model=ModelConfig(
            layers=3,
            d_model=64,
            attention=Attention(heads=4),
            feed_forward=Dense(d_ff=128),
            positions=LearnedPositions(max_length=32),
        ),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.positions", {"absolute": LearnedPositions(max_length=32), "contextual": ContextualPositions()})],
    claims=[
        Claim(
            "contextual positions reach a lower loss than absolute ones",
            lower={"positions": "contextual"},
            than={"positions": "absolute"},
        ),
    ],
    caveats=["In the paper, each layer has vectors of its own; here all layers share one position scheme."],
)
