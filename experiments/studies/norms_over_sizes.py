"""Does the gain of pre-norm over post-norm change with compute?

Five sizes of a byte model differ in depth, width and number of steps; the largest is held out of the fitted laws.
Command: flaxformer run experiments/studies/norms_over_sizes.py
Cost: 80 runs in 10 compiled programs; `plan` estimates 3 min 30 s on 2 CPU cores.
Expected: supported; at 2 other seeds (100 and 101), which suggested the claim, the gain of pre-norm was −0.02 nats at
the smallest size and 0.15 at the largest.
Result: supported; at seeds 0 to 7, the gain grows by 0.195 nats per factor of ten of FLOPs (0.099 to 0.273). Both
held-out means are inside their predictions. docs/scaling.md has the laws.
"""

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Dense,
    Linear,
    ModelConfig,
    Points,
    Run,
    Scaling,
    ScalingClaim,
    StandardLibrary,
    Study,
    Training,
)

SIZES = {"XS": (1, 16, 50), "S": (2, 16, 100), "M": (2, 24, 150), "L": (3, 32, 250), "XL": (4, 40, 400)}
"""Layers, width and steps; d_ff is twice the width."""

study = Study(
    name="norms_over_sizes",
    question="Does the gain of pre-norm over post-norm change with compute?",
    baseline=Run(
        model=ModelConfig(layers=1, d_model=16, attention=Attention(heads=2), feed_forward=Dense(d_ff=32), norm=PRE),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=5e-3, warmup_steps=20, decay=Linear()),
        training=Training(steps=50),
    ),
    axes=[
        Axis("model.norm", {"pre": PRE, "post": POST}),
        Points(
            "size",
            {
                name: {
                    "model.layers": layers,
                    "model.d_model": width,
                    "model.feed_forward.d_ff": 2 * width,
                    "training.steps": steps,
                }
                for name, (layers, width, steps) in SIZES.items()
            },
        ),
    ],
    seeds=range(8),
    scaling=Scaling("size", against="flops", held_out=("XL",)),
    claims=[
        ScalingClaim(
            "the gain of pre-norm over post-norm grows with compute",
            lower={"norm": "pre"},
            than={"norm": "post"},
            slope_above=0.0,
            answers={
                "supported": "Yes: the gain grows with compute, over these sizes.",
                "refuted": "Yes: the gain shrinks with compute, over these sizes.",
                "inconclusive": "The study cannot tell whether the gain changes with compute.",
            },
        ),
    ],
    caveats=["One learning rate and warm-up for all sizes and both norms; depth, width and steps grow together."],
)
