"""Looped blocks: all layers share the weights of one block.

Claims: a block that is applied four times reaches a lower loss than the same block applied once, and four blocks with
weights of their own a lower one still.
Source: Dehghani et al. 2019 (Universal Transformers); Lan et al. 2020 (ALBERT, section 3.1); Saunshi et al. 2025.
Command: flaxformer run experiments/components/looped_block.py
Cost: 15 runs in 3 compiled programs, about a minute on 2 CPU cores.
Expected: both claims supported.
Result: the first inconclusive: a block that is applied four times gains 0.003 nats [-0.019, 0.018] on one. The second
supported: four blocks gain 0.082 [0.056, 0.099] on it.
"""

from flaxformer import AdamW, Attention, Axis, Claim, Dense, ModelConfig, Run, StandardLibrary, Study, Training

DISTINCT = ModelConfig(layers=4, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256))
LOOPED = DISTINCT.replace(distinct_blocks=1)  # distinct_blocks=2 would apply two blocks in turn, twice
ONCE = DISTINCT.replace(layers=1)

study = Study(
    name="looped_block",
    question="Does depth help if all layers share their weights?",
    baseline=Run(
        model=DISTINCT,
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[Axis("model", {"4 blocks": DISTINCT, "1 block × 4": LOOPED, "1 block": ONCE}, name="blocks")],
    claims=[
        Claim(
            "at equal weights, four layers reach a lower loss than one",
            lower={"blocks": "1 block × 4"},
            than={"blocks": "1 block"},
        ),
        Claim(
            "at equal depth, four blocks reach a lower loss than one block four times",
            lower={"blocks": "4 blocks"},
            than={"blocks": "1 block × 4"},
        ),
    ],
    caveats=["The loop costs as much computation as four layers; at equal computation, more weights may be better."],
)
