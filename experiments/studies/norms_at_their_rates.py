"""Which norm placement is better when each is trained at its own best learning rate?

The rates were chosen by rates_of_norms.py and are read from its output folder. Its seeds are not reported here, because
the best of many rates looks better on the seeds that chose it than on others. For the same reason, the loss is that of
the test data: the rates were chosen by the validation loss.
Command: flaxformer run experiments/studies/norms_at_their_rates.py
Cost: 16 runs in 2 compiled programs, under a minute on 2 CPU cores.
Expected: supported; on 5 other seeds, which suggested the claim, pre-norm was better by 0.10 nats (0.04 to 0.15).
Result: supported, 0.095 nats [0.052, 0.179] of test loss, at 8 of 8 seeds.
"""

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Claim,
    Dense,
    Linear,
    ModelConfig,
    Points,
    Run,
    StandardLibrary,
    Study,
    Training,
    tuned_value,
)

SEEDS = range(10, 18)
RATE = "optimizer.learning_rate"
BEST = {norm: tuned_value("runs/rates_of_norms", RATE, seeds=SEEDS, where={"norm": norm}) for norm in ("pre", "post")}

study = Study(
    name="norms_at_their_rates",
    question="Which norm placement is better when each is trained at its own best learning rate?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=BEST["pre"], decay=Linear()),
        training=Training(steps=200, evaluate_every=50),
    ),
    axes=[
        Points(
            "norm", {"pre": {"model.norm": PRE, RATE: BEST["pre"]}, "post": {"model.norm": POST, RATE: BEST["post"]}}
        )
    ],
    seeds=SEEDS,
    metric="test_loss",
    claims=[
        Claim(
            "each at its best rate, pre-norm reaches a lower test loss than post-norm",
            lower={"norm": "pre"},
            than={"norm": "post"},
        )
    ],
    caveats=["One small model and 200 steps; each rate is the best of 16 by two other seeds."],
)
