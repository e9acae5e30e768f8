"""Multi-token prediction: a head that is trained to predict the next n tokens, and evaluated on the next one.

Claim: in a model this small, training on the next four tokens raises the validation loss of the next one.
Source: Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction", sections 2 and 3.1
(the gain grows with size; the smallest models get worse).
Command: flaxformer run experiments/components/multi_token_prediction.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported.
Result: supported, 0.279 nats [0.260, 0.341] higher.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LanguageModel,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.catalog import MultiToken

study = Study(
    name="multi_token_prediction",
    question="Does training on the next four tokens help a small model to predict the next one?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.head", {"next token": LanguageModel(), "4 tokens": MultiToken(horizon=4)})],
    claims=[
        Claim(
            "trained on four tokens, the loss of the next token is higher",
            higher={"head": "4 tokens"},
            than={"head": "next token"},
        ),
    ],
    caveats=["The gains that the paper finds in large models, better code and faster decoding, are not tested."],
)
