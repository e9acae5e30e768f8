"""Sigmoid attention: a sigmoid of each logit in place of the softmax over the keys.

Claims: sigmoid attention reaches the loss of softmax attention up to 0.05 nats; and a lower loss with −log S added to
the logits than without it, where S is the number of keys that a query may attend to.
Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", sections 3 and 5.
Command: flaxformer run experiments/components/sigmoid_attention.py
Cost: 15 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported. Without −log S, the sum of a query's weights begins at S / 2 instead of about 1.
Result: both inconclusive: 0.039 nats higher with an interval [0.032, 0.052] that ends beyond the margin, and 0.103
[-0.002, 0.133] higher without −log S.
"""

from flaxformer import AdamW, Attention, Axis, Claim, Dense, ModelConfig, Run, StandardLibrary, Study, Training
from flaxformer.catalog import SigmoidAttention

study = Study(
    name="sigmoid_attention",
    question="Is sigmoid attention as good as softmax attention, and does it need a bias that depends on the length?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=128)),
        task=StandardLibrary(length=64, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[
        Axis(
            "model.attention",
            {
                "softmax": Attention(heads=4),
                "sigmoid": SigmoidAttention(heads=4),
                "sigmoid without bias": SigmoidAttention(heads=4, length_bias=0.0),
            },
        )
    ],
    claims=[
        Claim(
            "sigmoid attention reaches the loss of softmax attention up to 0.05 nats",
            equal={"attention": "sigmoid"},
            to={"attention": "softmax"},
            within=0.05,
        ),
        Claim(
            "sigmoid attention reaches a lower loss with the bias −log S than without it",
            lower={"attention": "sigmoid"},
            than={"attention": "sigmoid without bias"},
        ),
    ],
    caveats=["One small model, one learning rate, 300 steps and 64 bytes of context."],
)
