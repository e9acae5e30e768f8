"""At which learning rate does each norm placement train best? Tuning, on seeds that no study reports.

Command: flaxformer run experiments/studies/rates_of_norms.py, then norms_at_their_rates.py beside it
Cost: 80 runs, 64 of which are stopped early, in 2 compiled programs; under a minute on 2 CPU cores.
"""

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Dense,
    Halving,
    Linear,
    LogUniform,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
    sample_points,
)

study = Study(
    name="rates_of_norms",
    question="At which learning rate does each norm placement train best?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(decay=Linear()),
        training=Training(steps=200, evaluate_every=50),
    ),
    axes=[
        Axis("model.norm", {"pre": PRE, "post": POST}),
        sample_points({"optimizer.learning_rate": LogUniform(1e-4, 1e-1)}, samples=16, method="sobol", seed=0),
    ],
    seeds=[1000, 1001],
    halving=Halving(factor=4, first=50),
)
