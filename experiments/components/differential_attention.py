"""Differential attention: each head subtracts one softmax map from another, so that their common part cancels.

Claim: on associative recall, differential attention reaches a lower loss than softmax attention with the same matrices.
Source: Ye et al. 2024, "Differential Transformer", section 2.1, and section 3.4 (retrieval of key information).
Command: flaxformer run experiments/components/differential_attention.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported.
Result: inconclusive. Softmax attention solves the task at all 5 seeds (0.0006 nats); differential attention fails at
one of them (1.0 nats) at this learning rate.
"""

from flaxformer import (
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
from flaxformer.catalog import DifferentialAttention

study = Study(
    name="differential_attention",
    question="Is differential attention better at retrieval than softmax attention with the same matrices?",
    baseline=Run(
        model=ModelConfig(vocabulary=16, layers=2, d_model=64, feed_forward=Dense(d_ff=128)),
        task=AssociativeRecall(pairs=4, queries=4, keys=8, values=8, batch_size=32),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=500, evaluate_every=100),
    ),
    axes=[Axis("model.attention", {"softmax": Attention(heads=4), "differential": DifferentialAttention(heads=4)})],
    claims=[
        Claim(
            "differential attention reaches a lower loss than softmax attention",
            lower={"attention": "differential"},
            than={"attention": "softmax"},
        )
    ],
    caveats=["One small model, one learning rate, and one task of 15 tokens: the paper's contexts are far longer."],
)
