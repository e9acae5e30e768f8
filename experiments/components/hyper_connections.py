"""Hyper-connections: several residual streams, which every branch reads and updates with learned weights.

Claims: four streams reach a lower loss than the plain residual connection, and than a single stream with the same
learned weights.
Source: Zhu et al. 2024, "Hyper-Connections", section 2 (the static form, with its initial values).
Command: flaxformer run experiments/components/hyper_connections.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported, by a small margin: the paper's models are 12 to 16 layers deep, these have four.
Result: both inconclusive; a gain above 0.008 nats is excluded for both. experiments/inversions/hyper_connections.py
has models of 12 layers.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    ModelConfig,
    Residual,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.catalog import HyperConnections

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
