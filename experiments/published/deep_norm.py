"""Does DeepNorm train a hundred layers where post-norm does not?

Wang et al. 2022, "DeepNet: scaling Transformers to 1,000 layers" (arXiv 2203.00555), scale the residual stream of
post-norm and the initial matrices of its branches such that updates are bounded: a Transformer of 1,000 layers trains.

Published: deep stacks, up to 1,000 layers, train without difficulty by DeepNorm (abstract, checked in copies of the
    paper); translation with 50 layers and more diverges with post-norm (table 1, from memory and not checked).
Differences: 100 layers of width 16, in a decoder on the source code of the Python standard library as bytes, 400 steps
    of 256 tokens, a warm-up of 100 steps and a linear decay, rather than translation at a width of 512.
Pilot: seed 100. At a rate of 0.005, and 40 steps of warm-up, neither learned more than the frequencies of bytes (3.17
    nats both), and with 4 layers post-norm did (2.64). With 100 steps of warm-up, the losses are 3.48 with post-norm
    and 3.37 with DeepNorm at 0.0005, 3.21 and 2.87 at 0.001, and 3.18 and 2.64 at 0.002, which was chosen, where
    post-norm with 4 layers has 2.76. The margins are below half of the differences; a first declaration, before any
    run, had the rate 0.001. By a slip, 22 runs of an earlier form, with 150 steps of 128 tokens at a rate of 0.003,
    were trained at seeds from 0 on; they were deleted unread.
Command: flaxformer run experiments/published/deep_norm.py
Cost: 18 runs in 3 compiled programs, about 3 minutes on 2 idle CPU cores.
Result: all four claims supported at seeds 0 to 5. With 100 layers, post-norm ends at 3.175 nats (3.174 to 3.176), the
    loss of predicting the frequencies of bytes, and DeepNorm at 2.67 (2.63 to 2.74), lower by 0.50 (0.44 to 0.54).
    Post-norm with 4 layers has 2.81. No run diverged: here post-norm does not learn, rather than diverge.
"""

from flaxformer import (
    POST,
    AdamW,
    Attention,
    Claim,
    DeepNorm,
    Dense,
    Linear,
    ModelConfig,
    Points,
    Run,
    StandardLibrary,
    Study,
    Training,
)

LAYERS = 100
UNIGRAM = 3.18
"""Loss of predicting each byte by its frequency, in nats."""


study = Study(
    name="deep_norm",
    question="Does DeepNorm train a hundred layers where post-norm does not?",
    baseline=Run(
        model=ModelConfig(layers=LAYERS, d_model=16, attention=Attention(heads=1), feed_forward=Dense(d_ff=32)),
        task=StandardLibrary(length=16, batch_size=16, evaluation_batches=48),
        optimizer=AdamW(learning_rate=2e-3, warmup_steps=100, decay=Linear()),
        training=Training(steps=400),
    ),
    axes=[
        Points(
            "placement",
            {
                "post": {"model.norm": POST},
                "DeepNorm": {"model.norm": POST, "model.residual": DeepNorm()},
                "post with 4 layers": {"model.norm": POST, "model.layers": 4},
            },
        ),
    ],
    seeds=range(6),
    metric_unit="nats",
    claims=[
        Claim(
            "post-norm with 100 layers learns no more than the frequencies of bytes: its loss is above 3.08 nats",
            higher={"placement": "post"},
            than=UNIGRAM - 0.1,
        ),
        Claim(
            "DeepNorm with 100 layers learns more: its loss is below 2.98 nats",
            lower={"placement": "DeepNorm"},
            than=UNIGRAM - 0.2,
        ),
        Claim(
            "at 100 layers, DeepNorm is better than post-norm by more than 0.2 nats",
            lower={"placement": "DeepNorm"},
            than={"placement": "post"},
            by=0.2,
        ),
        Claim(
            "the premise: post-norm with 4 layers learns, to below 2.98 nats",
            lower={"placement": "post with 4 layers"},
            than=UNIGRAM - 0.2,
        ),
    ],
    caveats=["One task and learning rate, layers of width 16, and 400 steps."],
)
