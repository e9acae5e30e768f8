"""Do query-key norm and z-loss make the loss less sensitive to the learning rate?

Wortsman et al. 2023, "Small-scale proxies for large-scale Transformer training instabilities" (arXiv 2309.14322),
define the sensitivity to the learning rate as the mean excess of the loss over its minimum, over a range of rates:

    mean over rates of min(loss(rate), loss before training) - lowest loss at any rate,

here over the ten powers of 2 from 2^-9 to 1, at each seed, for the four combinations of query-key norm (LayerNorm of
queries and keys, with weights) and z-loss (weight 1e-4). A diverged run counts with the loss before training, which is
also the rule of the paper. The paper finds that both make larger models less sensitive, with weight decay and
clipping, at rates from 3e-4 to 0.3. Here it is a byte model of width 32 with 2 layers, 200 steps, and neither weight
decay nor clipping.

Pilot (seeds 100 and 101, seven of the rates): from 2^-4 on, runs without query-key norm are worse; at 1, all are worse
than the unigram distribution (3.16), and no run diverged. The sensitivities are 0.33 with neither, 0.31 with z-loss,
0.26 with query-key norm and 0.27 with both. The directions of the first two claims are those of the paper; the margin
of the third, and the range of rates, were chosen by the pilot.

Published: query-key norm and z-loss lower the sensitivity to the learning rate (Wortsman et al. 2023, arXiv
    2309.14322).
Command: flaxformer run experiments/studies/rate_sensitivity.py
Cost: 320 runs in 4 compiled programs, 2 minutes of processor time.
Expected: all claims supported.
Result: the first supported, the others inconclusive, at seeds 0 to 7. The sensitivities are 0.288 with neither, 0.274
with z-loss, 0.233 with query-key norm and 0.241 with both; query-key norm lowers it by 0.055 (0.034 to 0.069) and
z-loss by 0.014 (-0.004 to 0.029). With query-key norm, z-loss raises it by 0.007 (-0.003 to 0.046, 90 %), and one seed
is far from the others. No run diverged, so that the loss before training (5.7) was never counted.
"""

from collections.abc import Mapping

import numpy as np

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LayerNorm,
    Linear,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
    ZLoss,
)

RATES = {f"2^{power}": 2.0**power for power in range(-9, 1)}
NORMS = {"none": None, "norm": LayerNorm()}
TERMS = {"none": (), "z_loss": (ZLoss(weight=1e-4),)}
NAMES = {
    ("none", "none"): "neither",
    ("norm", "none"): "query-key norm",
    ("none", "z_loss"): "z-loss",
    ("norm", "z_loss"): "both",
}


def sensitivity(losses: list[float], initial: list[float]) -> float:
    """Return the mean of min(loss, loss before training) over the rates, minus the lowest loss."""
    return float(np.minimum(losses, initial).mean() - min(losses))


def derive(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the sensitivity of each combination."""
    found = {}
    for (norm, term), name in NAMES.items():
        own = [rows[f"query_key_norm={norm},z_loss={term},rate={label}"] for label in RATES]
        losses = [row["validation_loss"] for row in own]
        found[f"sensitivity: {name}"] = sensitivity(losses, [row["initial_validation_loss"] for row in own])
    return found


study = Study(
    name="rate_sensitivity",
    question="Do query-key norm and z-loss make the loss less sensitive to the learning rate?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64)),
        task=StandardLibrary(length=32, batch_size=8),
        optimizer=AdamW(warmup_steps=20, decay=Linear()),
        training=Training(steps=200),
    ),
    axes=[
        Axis("model.attention.query_key_norm", NORMS, name="query_key_norm"),
        Axis("loss_terms", TERMS, name="z_loss"),
        Axis("optimizer.learning_rate", RATES, name="rate"),
    ],
    seeds=range(8),
    derive=derive,
    claims=[
        Claim(
            "query-key norm alone lowers the sensitivity",
            lower={"quantity": "sensitivity: query-key norm"},
            than={"quantity": "sensitivity: neither"},
        ),
        Claim(
            "z-loss alone lowers the sensitivity",
            lower={"quantity": "sensitivity: z-loss"},
            than={"quantity": "sensitivity: neither"},
        ),
        Claim(
            "with query-key norm, z-loss changes the sensitivity by less than 0.03 nats",
            equal={"quantity": "sensitivity: both"},
            to={"quantity": "sensitivity: query-key norm"},
            within=0.03,
        ),
    ],
    caveats=["One task, one small model, 200 steps; the sensitivity depends on the range of rates."],
)
