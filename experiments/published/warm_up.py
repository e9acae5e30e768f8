"""Does post-norm need a warm-up of the learning rate that pre-norm does not?

Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745): with the norm behind the
residual connection (post-norm), gradients near the output are large at initialisation, so that training needs a warm-up
of the learning rate; with the norm inside of the branch (pre-norm), none is needed.

Here the loss of each placement is that at the better of two learning rates, with and without warm-up for a third of the
steps; a gain is what the warm-up lowers it by.

Published: post-norm without warm-up has 8.45 BLEU, and about 34 with it (section 3, figure 2, IWSLT14 German-English,
    Adam; read in notes that quote it); pre-norm without warm-up reaches comparable results (abstract, checked in copies
    of the paper).
Differences: a decoder of 6 layers and width 32 on the source code of the Python standard library as bytes, 300 steps of
    256 tokens, rather than an encoder-decoder of 6 layers and width 512 on translation; losses rather than BLEU.
Pilot: seed 100, in this setting, the first that was tried. At rates of 0.001 and 0.003, the losses are 2.73 and 2.49
    without and 2.74 and 2.47 with warm-up for pre-norm, and 2.80 and 3.01 without and 2.80 and 2.69 with it for
    post-norm. The margins are about half of the gain of post-norm and three times that of pre-norm.
Command: flaxformer run experiments/published/warm_up.py
Cost: 64 runs in 2 compiled programs, about 2 minutes on 2 idle CPU cores.
Result: three of four claims supported and the first inconclusive, at seeds 0 to 7. Warm-up lowers the loss of post-norm
    by 0.078 nats (0.034 to 0.139) and that of pre-norm by 0.011 (0.007 to 0.018, 90 %): post-norm gains at every seed,
    but by less than the claimed 0.05 at three of them. With both learning rates at their better one, a lower rate
    replaces a part of the warm-up: at 0.003 alone, warm-up lowers the mean loss of post-norm from 3.02 to 2.81, and
    without it 0.001 gives 2.87. Pre-norm without warm-up, 2.50, is better than post-norm with it, 2.79.
"""

from collections.abc import Mapping

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    Linear,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.store.rows import Row

NORMS = {"pre": PRE, "post": POST}
RATES = {"0.001": 1e-3, "0.003": 3e-3}
WARM_UPS = {"none": 0, "100": 100}


def derive(rows: Mapping[str, Row]) -> dict[str, float]:
    """Return the loss of each norm at its best rate, with and without warm-up, and the gain of the warm-up."""
    numbers: dict[str, float] = {}
    for norm in NORMS:
        for warm_up in WARM_UPS:
            numbers[f"{norm}-norm, warm-up {warm_up}"] = min(
                rows[f"norm={norm},warm-up={warm_up},rate={rate}"]["validation_loss"] for rate in RATES
            )
        numbers[f"gain of {norm}-norm"] = numbers[f"{norm}-norm, warm-up none"] - numbers[f"{norm}-norm, warm-up 100"]
    return numbers


study = Study(
    name="warm_up",
    question="Does post-norm need a warm-up of the learning rate that pre-norm does not?",
    baseline=Run(
        model=ModelConfig(layers=6, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=128)),
        task=StandardLibrary(length=32, batch_size=8),
        optimizer=AdamW(decay=Linear()),
        training=Training(steps=300),
    ),
    axes=[
        Axis("model.norm", NORMS),
        Axis("optimizer.warmup_steps", WARM_UPS, name="warm-up"),
        Axis("optimizer.learning_rate", RATES, name="rate"),
    ],
    seeds=range(8),
    derive=derive,
    claims=[
        Claim(
            "post-norm without warm-up is worse, by more than 0.05 nats",
            higher={"quantity": "gain of post-norm"},
            than=0.05,
        ),
        Claim(
            "pre-norm needs none: warm-up changes its loss by less than 0.05 nats",
            equal={"quantity": "gain of pre-norm"},
            to=0.0,
            within=0.05,
        ),
        Claim(
            "post-norm gains more by warm-up than pre-norm",
            higher={"quantity": "gain of post-norm"},
            than={"quantity": "gain of pre-norm"},
        ),
        Claim(
            "pre-norm without warm-up is better than post-norm with it",
            lower={"quantity": "pre-norm, warm-up none"},
            than={"quantity": "post-norm, warm-up 100"},
        ),
    ],
    caveats=["One task and depth, 300 steps; the better of two learning rates counts, at the seeds that are compared."],
)
