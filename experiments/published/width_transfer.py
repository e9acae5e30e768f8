"""Does the best learning rate of a narrow model hold for a wide one, with and without μP?

Yang et al. 2022, "Tensor Programs V" (arXiv 2203.03466): under the maximal update parametrization (μP), the best
learning rate stays where it is as the width grows, so that it can be tuned on a narrow model; under the standard
parametrization it falls.

A byte model is trained at three widths and six learning rates under both. At each seed and width, the best rate is the
minimum of a parabola in ln(rate), through the best rate that was tried and up to two on each side; the number of each
seed is the slope of ln(best rate) against ln(width). A slope of 0 means that the rate of the narrowest model can be
kept, and of -1 that it has to fall as 1 / width. The transferred loss is that of the widest model at the rate that is
the best of those tried for the narrowest, and the transfer cost is its excess over the least loss of the widest model.

Published: under μP the best learning rate is the same at all widths, under the standard parametrization it falls with
    the width, and wide models are better under μP at any rate (abstract, checked at the source, for the first part;
    figure 1, with widths of 128 to 8,192, from memory and not checked).
Differences: widths of 16, 40 and 96 rather than 128 to 8,192; 2 layers, 150 steps of 256 bytes of the source code of
    the Python standard library rather than WikiText-2; Adam with a linear decay; μP with a base width of 16.
Pilot: seeds 100 and 101, widths 16, 32, 64 and 128. The best rates (powers of 2) are -5.7, -6.0, -6.8 and -7.6 at seed
    100 under the standard parametrization, and -5.7, -5.5, -5.6 and -5.4 under μP. At the transferred rate, the widest
    model is 0.004 nats above its best one under μP and 0.08 under the standard parametrization, but its loss, 2.47,
    is not below the 2.46 of the latter, so the last claim was expected to fail. The rates, and the margins of the
    slopes, are those of an earlier form of this study, in which both claims about slopes were supported: widths of 16
    to 128, 200 steps of 512 bytes, seeds 0 to 7; slopes of -0.65 (-0.75 to -0.59) and 0.00 (-0.07 to 0.05, 90 %).
    Widths were reduced for their cost, and the margin of μP is 0.15 rather than 0.1 since they span less.
Command: flaxformer run experiments/published/width_transfer.py
Cost: 180 runs in 6 compiled programs, about 3 minutes on 2 idle CPU cores.
Result: all four claims inconclusive at seeds 0 to 4, three of them for the number of seeds. The slope is -0.77, -0.54,
    -0.72, -0.86 and -0.77 under the standard parametrization, every one below -0.3, and -0.10, 0.23, 0.01, -0.10 and
    -0.03 under μP: one is outside of 0.15, where the narrowest model learned best at a lower rate than at the other
    seeds. Five values with one far from the others have wide intervals. To keep the rate of the narrowest model costs
    0.15, 0.06, 0.19, 0.19 and 0.04 nats under the standard parametrization and 0.00, 0.04, 0.00, 0.00 and 0.00 under
    μP. The transferred loss of the widest model is 2.51 and 2.48 nats: not told apart, as expected, since its best loss
    is lower under the standard parametrization (2.38) than under μP (2.47) after 150 steps.
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
    Linear,
    ModelConfig,
    MuP,
    Parametrization,
    Points,
    Run,
    StandardLibrary,
    Study,
    Training,
)
from flaxformer.statistics.parabola import log_optimum
from flaxformer.store.rows import Row

BASE = 16
WIDTHS = {str(width): width for width in (BASE, 40, 96)}
RATES = {f"2^{power}": 2.0**power for power in range(-9, -3)}
PARAMETRIZATIONS = {"standard": Parametrization(), "mup": MuP(base_width=BASE)}


def derive(rows: Mapping[str, Row]) -> dict[str, float]:
    """Slope of ln(best rate) against ln(width), best rates in powers of 2, and transfer per parametrization."""
    numbers: dict[str, float] = {}
    for name in PARAMETRIZATIONS:
        losses = {
            width: {
                rate: rows[f"parametrization={name},width={width},rate={label}"]["validation_loss"]
                for label, rate in RATES.items()
            }
            for width in WIDTHS
        }
        best = {width: log_optimum(losses[width]) for width in WIDTHS}
        numbers |= {f"{name}: log2 of the best rate at width {width}": best[width] / math.log(2) for width in WIDTHS}
        numbers[f"{name}: slope"] = float(np.polyfit(np.log(list(WIDTHS.values())), list(best.values()), 1)[0])
        narrow, *_, wide = losses.values()
        transferred = wide[min(narrow, key=narrow.__getitem__)]
        numbers |= {
            f"{name}: transferred loss": transferred,
            f"{name}: transfer cost": transferred - min(wide.values()),
        }
    return numbers


study = Study(
    name="width_transfer",
    question="Does the best learning rate of a narrow model hold for a wide one?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=BASE, attention=Attention(heads=2), feed_forward=Dense(d_ff=4 * BASE)),
        task=StandardLibrary(length=32, batch_size=8),
        optimizer=AdamW(warmup_steps=15, decay=Linear()),
        training=Training(steps=150),
    ),
    axes=[
        Axis("model.parametrization", PARAMETRIZATIONS),
        Points(
            "width",
            {
                label: {
                    "model.d_model": width,
                    "model.attention.heads": width // 8,
                    "model.feed_forward.d_ff": 4 * width,
                }
                for label, width in WIDTHS.items()
            },
        ),
        Axis("optimizer.learning_rate", RATES, name="rate"),
    ],
    seeds=range(5),
    derive=derive,
    claims=[
        Claim(
            "under the standard parametrization, the slope of the best rate is below -0.3",
            lower={"quantity": "standard: slope"},
            than=-0.3,
        ),
        Claim(
            "under μP, the slope of the best rate is within 0.15 of 0",
            equal={"quantity": "mup: slope"},
            to=0.0,
            within=0.15,
        ),
        Claim(
            "to keep the rate of the narrowest model costs the widest one less under μP",
            lower={"quantity": "mup: transfer cost"},
            than={"quantity": "standard: transfer cost"},
        ),
        Claim(
            "with the rate of the narrowest model, the widest one has a lower loss under μP",
            lower={"quantity": "mup: transferred loss"},
            than={"quantity": "standard: transferred loss"},
        ),
    ],
    caveats=["One task, two layers, 150 steps, heads of width 8; widths from 16 to 96."],
)
