"""Gated delta rule: linear attention that replaces the value stored for a key, instead of adding to it.

Claim: on associative recall after a short convolution, the delta rule reaches a lower loss than additive writes.
Source: Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", section 3 and table 2.
Command: flaxformer run experiments/components/gated_delta_rule.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported. With additive writes, a query reads the sum of the values of similar keys.
Result: inconclusive, 0.03 nats [-0.22, 0.14] lower; neither solves the task in these steps.
"""

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Axis,
    Block,
    Claim,
    Dense,
    ModelConfig,
    Run,
    Study,
    Training,
)
from flaxformer.catalog import GatedDeltaRule, ShortConvolution

BLOCKS = (Block(attention=ShortConvolution()), Block(attention=GatedDeltaRule()))

study = Study(
    name="gated_delta_rule",
    question="Is the delta rule better at recall than additive writes?",
    baseline=Run(
        model=ModelConfig(vocabulary=64, layers=2, d_model=64, pattern=BLOCKS, feed_forward=Dense(d_ff=128)),
        task=AssociativeRecall(pairs=12, queries=8, keys=32, values=32, batch_size=32),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.pattern.1.attention.delta", {"additive": False, "delta": True}, name="write")],
    claims=[Claim("the delta rule lowers the loss", lower={"write": "delta"}, than={"write": "additive"})],
    caveats=["One small model, one learning rate, and a task that does not need forgetting."],
)
