"""Does the gain of exclusive self-attention grow with the length of the sequences?

Zhai 2026, "Exclusive Self Attention" (arXiv 2603.09078), removes from the output of a head its component along the
token's own value (XSA), and finds larger gains for longer sequences. Here, a byte model is trained with both at four
lengths, with the same number of tokens per batch and in all. The gain is the validation loss of self-attention minus
that of XSA; its slope is that of least squares through the gains of a seed, per doubling of the length.

Published: XSA is consistently better than self-attention in models up to 2.7B weights, and shows increasingly larger
    gains as the sequence length grows (abstract, checked at the source; the numbers of its figures were not).
Differences: 2 layers of width 32 on the source code of the Python standard library as bytes, 200 steps of 1,024 tokens,
    lengths 32 to 256; one learning rate for both; rotary positions.
Pilot: none. The learning rate and the schedule are those of other byte models of this repository; claims are of
    directions, without margins. Before any run, width, steps and seeds were reduced from 48, 300 and 6 for their cost.
Command: flaxformer run experiments/published/exclusive_attention.py
Cost: 40 runs in 8 compiled programs, about 2 minutes on 2 idle CPU cores.
Result: all four claims inconclusive at seeds 0 to 4. The gain is 0.031 nats (-0.009 to 0.178) at 32 tokens and -0.022
    (-0.065 to 0.087) at 256, and its slope -0.017 per doubling (-0.066 to -0.006), in the other direction. A likely
    reason, which was not tested: after 200 steps, bytes are predicted from the last few of them, so that neither length
    nor the exclusion of a token's own value matters much, and the gains vary by more between seeds than between
    lengths.
"""

from collections.abc import Mapping

import numpy as np

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    Linear,
    ModelConfig,
    Points,
    Rotary,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.catalog.exclusive_attention import ExclusiveAttention
from flaxformer.store.rows import Row

TOKENS = 1024
"""Tokens per batch at every length."""
LENGTHS = (32, 64, 128, 256)


def windows(length: int) -> dict[str, object]:
    """Return the changes of a task for windows of a length."""
    return {"task.length": length, "task.batch_size": TOKENS // length, "task.evaluation_batch_size": TOKENS // length}


def derive(rows: Mapping[str, Row]) -> dict[str, float]:
    """Gain of exclusive attention at each length, in nats, and its slope per doubling of the length."""
    gains = [
        rows[f"attention=self,length={length}"]["validation_loss"]
        - rows[f"attention=exclusive,length={length}"]["validation_loss"]
        for length in LENGTHS
    ]
    named = {f"gain at {length}": gain for length, gain in zip(LENGTHS, gains, strict=True)}
    return named | {"slope": float(np.polyfit(np.log2(LENGTHS), gains, 1)[0]), "gain": float(np.mean(gains))}


study = Study(
    name="exclusive_attention",
    question="Does the gain of exclusive self-attention grow with the length of the sequences?",
    baseline=Run(
        model=ModelConfig(
            layers=2, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64), positions=Rotary()
        ),
        task=StandardLibrary(length=32, batch_size=TOKENS // 32, evaluation_batches=32),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=30, decay=Linear()),
        training=Training(steps=200),
    ),
    axes=[
        Axis("model.attention", {"self": Attention, "exclusive": ExclusiveAttention}),
        Points("length", {str(n): windows(n) for n in LENGTHS}),
    ],
    seeds=range(5),
    derive=derive,
    claims=[
        Claim("the gain grows with the length: its slope is above 0", higher={"quantity": "slope"}, than=0.0),
        Claim("over all lengths, exclusive attention has the lower loss", higher={"quantity": "gain"}, than=0.0),
        Claim("it has at 256 tokens", higher={"quantity": "gain at 256"}, than=0.0),
        Claim("it has at 32 tokens", higher={"quantity": "gain at 32"}, than=0.0),
    ],
    caveats=[
        "Bytes, of which 256 are a few lines of code: the published lengths are of tokens of words.",
        "Longer sequences come with fewer sequences per batch, and one learning rate for all.",
        "Losses at different lengths are of different windows; gains compare both kinds on the same ones.",
    ],
)
