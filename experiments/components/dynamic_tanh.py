"""Dynamic tanh (DyT): an activation in place of LayerNorm, without a statistic of the token.

Claim: a model with DyT reaches the loss of one with LayerNorm up to 0.05 nats.
Source: Zhu et al. 2025, "Transformers without Normalization", section 4.
Command: flaxformer run experiments/components/dynamic_tanh.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported, or inconclusive if the standard error is as large as the margin.
Result: refuted, 0.19 nats [0.15, 0.38] higher; experiments/inversions/dynamic_tanh.py has the cause.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LayerNorm,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.catalog import DynamicTanh

study = Study(
    name="dynamic_tanh",
    question="Can a learned tanh replace LayerNorm?",
    baseline=Run(
        model=ModelConfig(layers=4, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[Axis("model.norm_kind", {"LayerNorm": LayerNorm(), "DyT": DynamicTanh()}, name="norm")],
    claims=[
        Claim(
            "DyT and LayerNorm do not differ by more than 0.05 nats",
            equal={"norm": "DyT"},
            to={"norm": "LayerNorm"},
            within=0.05,
        ),
    ],
    caveats=["The initial slope of 0.5 is the paper's, which tunes it by width for language models."],
)
