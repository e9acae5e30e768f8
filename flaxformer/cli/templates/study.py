"""NAME: the question in one sentence.

Claim: the result that you expect, and why (a paper, or your own reason).
Run: flaxformer run NAME.py (flaxformer plan NAME.py first shows its cost).
"""

from flaxformer import (
    POST,
    PRE,
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Dense,
    ModelConfig,
    Run,
    Study,
    Training,
)

study = Study(
    name="NAME",
    question="Does pre-norm learn associative recall better than post-norm?",
    # Choices that all arms share: architecture, task, optimizer and training.
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    # Factors to vary: the path of a field and its levels by name. Several axes are combined.
    axes=[Axis("model.norm", {"pre": PRE, "post": POST})],
    seeds=range(5),
    metric="validation_loss",
    # Claims, declared before any result is seen: lower, higher or equal, paired by seed.
    claims=[Claim("pre-norm has the lower loss", lower={"norm": "pre"}, than={"norm": "post"})],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
