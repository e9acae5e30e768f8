"""Classification of short reviews, from a table: does a classifier have to read in both directions?

Command: flaxformer run reviews.py, in the folder of reviews.csv (240 invented reviews)
Cost: 10 runs in 2 compiled programs, about half a minute on 2 CPU cores.
Expected: the claim supported, with a difference of about 0.1.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Classifier,
    Dense,
    ModelConfig,
    Run,
    Study,
    TextLabels,
    Training,
)

task = TextLabels(
    path="reviews.csv", text="text", label="label", bpe_vocabulary=500, max_length=24, validation_tenths=2
)

study = Study(
    name="reviews",
    question="Does a classifier of reviews have to read in both directions?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=task.vocabulary,
            layers=1,
            d_model=32,
            attention=Attention(heads=2),
            feed_forward=Dense(d_ff=64),
            mask_pattern="bidirectional",
            head=Classifier(classes=task.classes),
        ),
        task=task,
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=20),
        training=Training(steps=200, evaluate_every=50),
    ),
    axes=[Axis("model.mask_pattern", {"both": "bidirectional", "backward": "causal"}, name="reads")],
    metric="validation_accuracy",
    claims=[
        Claim("reading in both directions helps", higher={"reads": "both"}, than={"reads": "backward"}, by=0.02),
    ],
    caveats=["240 invented reviews, one model size, one learning rate."],
)
