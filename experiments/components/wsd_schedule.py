"""User-defined schedule: warm-up, stable, decay (WSD), which can be extended before the decay.

Claims: WSD reaches a lower loss than a constant rate, and the loss of a cosine up to 0.03 nats.
Source: Hu et al. 2024, "MiniCPM", section 4; the form of the decay, 1 − √, from Hägele et al. 2024.
Command: flaxformer run experiments/components/wsd_schedule.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported.
Result: the first supported, 0.033 nats [0.015, 0.042]. The second refuted: WSD ends 0.089 nats [0.082, 0.093] below
the cosine.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Constant,
    Cosine,
    Dense,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
    WarmupStableDecay,
)

study = Study(
    name="wsd_schedule",
    question="Is a short decay at the end as good as one over the whole run?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50, decay=Cosine()),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[
        Axis(
            "optimizer.decay",
            {"cosine": Cosine(), "WSD": WarmupStableDecay(), "constant": Constant()},
            name="schedule",
        ),
    ],
    claims=[
        Claim(
            "a decay at the end reaches a lower loss than none",
            lower={"schedule": "WSD"},
            than={"schedule": "constant"},
        ),
        Claim(
            "a decay at the end and a cosine do not differ by more than 0.03 nats",
            equal={"schedule": "WSD"},
            to={"schedule": "cosine"},
            within=0.03,
        ),
    ],
    caveats=["One peak rate: the best one may differ from schedule to schedule."],
)
