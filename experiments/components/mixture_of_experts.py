"""Mixture of experts: a router selects a few of many feed-forward networks per token.

Claims: 8 experts of width 64, of which a token uses 2, reach a lower loss than a dense network of width 128; and with
the balance loss, the busiest expert gets a smaller share of the tokens than without it.
Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 5 and table 6; the balance loss of Fedus et
al. 2022, "Switch Transformers", equation 4.
Command: flaxformer run experiments/components/mixture_of_experts.py
Cost: 15 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported.
Result: both supported: 0.030 nats [0.000, 0.040] lower, and the busiest expert gets 0.10 [0.02, 0.44] less of the
tokens.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import (
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
    model,
)
from flaxformer.catalog import MixtureOfExperts


def measure(params: Any, run: Run) -> dict[str, Array]:
    """Return the largest share of the tokens of any expert in any layer; 1 for a dense network."""
    statistics = model.run(params, run.model, run.task.load().evaluation().inputs[0], {}).aux.statistics
    return {"largest_load": statistics.get("blocks/feed_forward/load", jnp.ones(1)).max()}


def derive(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the largest load with and without the balance loss, for a claim."""
    return {name: rows[f"network={name}"]["largest_load"] for name in ("experts", "unbalanced")}


NETWORKS = {
    "dense": Dense(d_ff=128),
    "experts": MixtureOfExperts(),
    "unbalanced": MixtureOfExperts(balance=0.0),
}

study = Study(
    name="mixture_of_experts",
    question="Are experts better than a dense network of the same active width, and does the balance loss work?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=2), feed_forward=NETWORKS["dense"]),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[Axis("model.feed_forward", NETWORKS, name="network")],
    measure=measure,
    derive=derive,
    claims=[
        Claim(
            "experts reach a lower loss than a dense network", lower={"network": "experts"}, than={"network": "dense"}
        ),
        Claim("the balance loss evens the load", lower={"quantity": "experts"}, than={"quantity": "unbalanced"}),
    ],
    caveats=["The experts have four times the parameters of the dense network; only the active width is equal."],
)
