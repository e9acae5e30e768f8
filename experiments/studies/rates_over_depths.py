"""Does the best learning rate of a shallow model hold for a deep one, with and without depth scaling?

A byte model of width 16 is trained at four depths and eight learning rates, under three parametrizations: the standard
one with pre-norm, CompleteP (Dey et al. 2025) and depth-μP (Yang et al. 2024). The width is the base width, at which μP
without depth scaling is the standard parametrization; at 2 layers, the base depth, all three are equal. At each seed
and depth, the best rate is the minimum of a parabola in ln(rate), as in ../published/width_transfer.py. The numbers of
a seed:

- slope: that of ln(best rate) against ln(layers), 0 if the rate of 2 layers can be kept;
- transferred loss: the loss of 16 layers at the rate that was best, of those tried, for 2 layers;
- transfer cost: the transferred loss minus the lowest loss of 16 layers at any rate, which is never negative.

Where the parabola has no minimum within the rates that it is fitted to, `log_optimum` takes the end of them, or the
best rate that was tried.

Pilot (seeds 100 and 101, 2 and 16 layers, rates from 2^-8 to 2^-2): the best rates of the mean losses are near 2^-5.3
at 2 layers; at 16 layers, they are 2^-7 under the standard parametrization, whose loss depends little on the rate (2.78
to 3.00), 2^-4 to 2^-6 under CompleteP (2.57), and 2^-4 under depth-μP (2.51). The slopes of the two seeds are -0.5 on
average, 0.1 and 0.36; the transfer cost of CompleteP is 0.01. An earlier pilot with batches of 8 was noisier. The
thresholds of the slopes are those of an earlier form of width_transfer.py, which come from the question; that of the
transfer cost, the fourth claim, the batches and the range of rates were chosen by the pilots. Depth-μP is reported
without a claim.

Published: under CompleteP the best learning rate of a shallow model is also that of a deep one (Dey et al. 2025, arXiv
    2505.01618).
Command: flaxformer run experiments/studies/rates_over_depths.py --layout scanned
Cost: 768 runs in 12 compiled programs, about 20 minutes of processor time.
Expected: the third and the fourth claim supported, the others unclear after the pilot.
Result: the fourth supported, the others inconclusive, at seeds 0 to 7. The slope is -0.23 (-0.45 to 0.17) under the
standard parametrization and 0.127 (0.063 to 0.194, 90 %) under CompleteP, whose transfer cost is 0.010 (-0.004 to
0.045) and whose transferred loss is lower by 0.292 (0.248 to 0.408). Under depth-μP, the slope is 0.39 (0.29 to 0.50).
No run diverged. The claims, which do not read depth-μP, were first judged before its last 109 runs; the verdicts are
the same.
"""

import math
from collections.abc import Mapping

import numpy as np

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    DepthScaled,
    Linear,
    ModelConfig,
    MuP,
    Parametrization,
    Points,
    Residual,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.statistics.parabola import log_optimum

WIDTH, BASE = 16, 2
DEPTHS = {str(depth): depth for depth in (BASE, 4, 8, 16)}
RATES = {f"2^{power}": 2.0**power for power in range(-9, -1)}
STANDARD = (Parametrization(), Residual())
COMPLETE_P = (MuP(base_width=WIDTH), DepthScaled(base_layers=BASE))
DEPTH_MUP = (
    MuP(base_width=WIDTH, base_layers=BASE, depth_rate_power=0.5),
    DepthScaled(exponent=0.5, base_layers=BASE),
)
PARAMETRIZATIONS = {"standard": STANDARD, "completep": COMPLETE_P, "depth_mup": DEPTH_MUP}


def derive(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of the docstring per parametrization, and the best rates in powers of 2."""
    found = {}
    for name in PARAMETRIZATIONS:
        losses = {
            depth: {
                rate: rows[f"parametrization={name},layers={depth},rate={label}"]["validation_loss"]
                for label, rate in RATES.items()
            }
            for depth in DEPTHS
        }
        best = [log_optimum(own) for own in losses.values()]
        for depth, log_rate in zip(DEPTHS, best, strict=True):
            found[f"{name}: log2 of the best rate at {depth} layers"] = log_rate / math.log(2)
        found[f"{name}: slope"] = float(np.polyfit(np.log(list(DEPTHS.values())), best, 1)[0])
        shallow, *_, deep = losses.values()
        transferred = deep[min(shallow, key=lambda rate: shallow[rate])]
        found[f"{name}: transferred loss"] = transferred
        found[f"{name}: transfer cost"] = transferred - min(deep.values())
    return found


study = Study(
    name="rates_over_depths",
    question="Does the best learning rate of a shallow model hold for a deep one?",
    baseline=Run(
        model=ModelConfig(layers=BASE, d_model=WIDTH, attention=Attention(heads=2), feed_forward=Dense(d_ff=4 * WIDTH)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(warmup_steps=20, decay=Linear()),
        training=Training(steps=150),
    ),
    axes=[
        Points(
            "parametrization",
            {
                name: {"model.parametrization": parametrization, "model.residual": residual}
                for name, (parametrization, residual) in PARAMETRIZATIONS.items()
            },
        ),
        Axis("model.layers", DEPTHS),
        Axis("optimizer.learning_rate", RATES, name="rate"),
    ],
    seeds=range(8),
    derive=derive,
    claims=[
        Claim(
            "under the standard parametrization, the slope of the best rate is below -0.3",
            lower={"quantity": "standard: slope"},
            than=-0.3,
        ),
        Claim(
            "under CompleteP, the slope of the best rate is within 0.1 of 0",
            equal={"quantity": "completep: slope"},
            to=0.0,
            within=0.1,
        ),
        Claim(
            "under CompleteP, the best rate of 2 layers costs 16 layers less than 0.05 nats",
            lower={"quantity": "completep: transfer cost"},
            than=0.05,
        ),
        Claim(
            "with the best rate of 2 layers, 16 layers reach a lower loss under CompleteP than under the standard one",
            lower={"quantity": "completep: transferred loss"},
            than={"quantity": "standard: transferred loss"},
        ),
    ],
    caveats=["One task, width 16, 150 steps; depths from 2 to 16."],
)
