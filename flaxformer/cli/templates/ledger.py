"""NAME: the recipe to improve, in one sentence.

Run: flaxformer noise NAME.py                       how small an effect the seeds can show
     flaxformer improve NAME.py PATH=VALUE --reason "why the change may help"
     flaxformer improve NAME.py --confirm           once, at the end
"""

from flaxformer import AdamW, Attention, Dense, Ledger, ModelConfig, Rotary, Run, StandardLibrary, Training

ledger = Ledger(
    name="NAME",
    # The recipe that attempts change.
    start=Run(
        model=ModelConfig(
            layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64), positions=Rotary()
        ),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=20),
        training=Training(steps=100),
    ),
    metric="validation_loss",
    # Smallest improvement of interest, in the unit of the metric.
    effect=0.01,
    # Number of attempts that you expect to make, and the largest number of paired runs of each.
    attempts=20,
    seeds=40,
    # A candidate that costs more per step trains for fewer steps.
    compare="equal compute",
)
