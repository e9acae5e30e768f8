"""Does the gain of an input skip shrink with the size of the model?

An input skip adds the embeddings to the residual stream before every branch, with learned factors that start at 0 (x0
skip of modded-nanogpt and nanochat). nanochat's log has the gain at four depths, where the width is 64 times the depth
and the number of training tokens grows too. Here, a byte model is trained with and without at three depths, with a
width of 8 times the depth.

Published: validation bits per byte fall by 0.0103, 0.0077, 0.0057 and 0.0039 at 8, 12, 16 and 20 layers, each at the
    best of several learning rates of the factors (karpathy/nanochat, dev/LOG.md, 11 January 2026, checked at the
    source).
Differences: 2, 4 and 6 layers of width 16, 32 and 48, on the source code of the Python standard library as bytes; 250
    steps of 512 tokens at every size; AdamW with one learning rate for all weights, factors included, where nanochat
    has Muon and chose the rate of the factors for each depth; a pair of factors per branch rather than per layer, with
    the factor of the residual stream learned too; losses in nats.
Pilot: none. The learning rate and the schedule are those of other byte models of this repository; claims are of
    directions, without margins.
Command: flaxformer run experiments/published/input_skip.py
Cost: 36 runs in 6 compiled programs, about 3 minutes on 2 idle CPU cores.
Result: the first claim refuted, the others inconclusive at seeds 0 to 5. The gain is -0.012 nats (-0.026 to 0.006) with
    2 layers, -0.005 (-0.012 to 0.012) with 4 and 0.020 (0.004 to 0.058) with 6: it grows with the size, by 0.027 nats
    per factor of ten of FLOPs (0.014 to 0.041). A likely reason, which was not tested: models of 2 to 6 layers are
    below the sizes at which the skip begins to help, and the published gains shrink from there on; the learning rate of
    the factors was not chosen for each depth either.
"""

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    Linear,
    ModelConfig,
    Points,
    Residual,
    Rotary,
    Run,
    Scaling,
    ScalingClaim,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.catalog.input_skip import InputSkip

DEPTHS = (2, 4, 6)
WIDTH_PER_LAYER = 8

study = Study(
    name="input_skip",
    question="Does the gain of an input skip shrink with the size of the model?",
    baseline=Run(
        model=ModelConfig(
            layers=2, d_model=16, attention=Attention(heads=1), feed_forward=Dense(d_ff=32), positions=Rotary()
        ),
        task=StandardLibrary(length=32, batch_size=16, evaluation_batches=48),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=30, decay=Linear()),
        training=Training(steps=250),
    ),
    axes=[
        Axis("model.residual", {"plain": Residual(), "input skip": InputSkip()}),
        Points(
            "depth",
            {
                str(n): {
                    "model.layers": n,
                    "model.d_model": WIDTH_PER_LAYER * n,
                    "model.attention.heads": n // 2,
                    "model.feed_forward.d_ff": 2 * WIDTH_PER_LAYER * n,
                }
                for n in DEPTHS
            },
        ),
    ],
    seeds=range(6),
    scaling=Scaling("depth", against="flops"),
    claims=[
        ScalingClaim(
            "the gain of the input skip shrinks with the compute of the model: its slope is below 0",
            lower={"residual": "input skip"},
            than={"residual": "plain"},
            slope_below=0.0,
        ),
        *(
            Claim(
                f"with {depth} layers, the input skip has the lower loss",
                lower={"residual": "input skip"},
                than={"residual": "plain"},
                where={"depth": str(depth)},
            )
            for depth in DEPTHS
        ),
    ],
    caveats=[
        "Equal steps at every size, where the published runs have more tokens for larger models.",
        "Three depths, far below the published ones, and one learning rate for all.",
    ],
)
