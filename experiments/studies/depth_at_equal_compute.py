"""Is a deeper model better than a shallow one that is trained for as many FLOPs?

The arms have one, two and four layers. Each has the FLOPs of two layers trained for 600 steps: one layer is trained for
more steps, four layers for fewer (`compare`). At so small a budget, more tokens are expected to be worth more than more
layers. The learning rate is the best of four at two layers, in pilots at seeds 100 and 101, which are not reported.

Command: flaxformer run experiments/studies/depth_at_equal_compute.py
Cost: 24 runs of 53 GFLOP in 3 compiled programs; 7 minutes on 2 CPU cores that other programs shared.
Expected: both claims supported.
Result: both supported at 8 of 8 seeds. One layer ends 0.049 nats [0.038, 0.074] below two, and two 0.109 [0.095, 0.132]
below four; docs/cost.md has the table.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    EqualCost,
    Linear,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
)

study = Study(
    name="depth_at_equal_compute",
    question="Is a deeper model better than a shallow one at equal compute?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=50, decay=Linear()),
        training=Training(steps=600, evaluate_every=60),
    ),
    axes=[Axis("model.layers", {"1": 1, "2": 2, "4": 4})],
    seeds=range(8),
    compare=EqualCost("compute", adjust="training.steps", tolerance=0.02),
    claims=[
        Claim(
            "one layer reaches a lower loss than two at equal compute",
            lower={"layers": "1"},
            than={"layers": "2"},
            answers={
                "supported": "No: with 53 GFLOP, one layer and more tokens are better than two layers.",
                "refuted": "Yes: with 53 GFLOP, two layers are better than one layer and more tokens.",
                "inconclusive": "The study cannot tell whether one layer or two are better with 53 GFLOP.",
            },
        ),
        Claim(
            "two layers reach a loss that is lower by 0.05 than that of four at equal compute",
            lower={"layers": "2"},
            than={"layers": "4"},
            by=0.05,
        ),
    ],
    caveats=["One width, one learning rate and 53 GFLOP: with more compute, another depth may be best."],
)
