"""Are the gradients of pre-norm better at initialisation, and does it train faster and without warm-up?

The text (after Xiong et al. 2020): the gradients of pre-norm are much better at initialisation, so that it trains much
faster. The theorem of Xiong et al. is about the layer nearest the output: the gradient of its last matrix falls as 1/√L
under pre-norm and does not depend on the depth L under post-norm. It does not cover the first layer, whose gradients
are about as large under either. "Better" is therefore tested at both ends. The consequence for training depends on
depth and learning rate: the study crosses both with warm-up, and compares the placements at one rate and at the best
rate of each.

In a pilot (seeds 100 and 101), 24 layers of post-norm learned only the frequencies of bytes at their best rate, and
warm-up for half of the run did not change that. With 6 layers of width 64, more text per step and twice the steps,
warm-up helps by 0.2 nats: experiments/norm_and_scale.py.

Cost: 288 runs in 6 programs and a probe, about 400 CPU seconds; --quick, the probe with two depths, 20.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Claim,
    ModelConfig,
    Probe,
    Run,
    StandardLibrary,
    Study,
    Training,
    start,
)
from flaxformer.claims import Case
from flaxformer.training.loss import loss

BASELINE = Run(
    model=ModelConfig(layers=24, d_model=32, attention=Attention(heads=1)),
    task=StandardLibrary(length=16, batch_size=16),
    optimizer=AdamW(learning_rate=3e-3),
    training=Training(steps=100),
)
AT_START = Run(model=ModelConfig(d_model=64), task=StandardLibrary(length=32, batch_size=32))
NORMS = {"pre": PRE, "post": POST}
DEPTHS = [6, 12, 24, 48]


@jax.jit
def sizes(params: Any, run: Run, batch: Any) -> jax.Array:
    """Return ‖∂loss/∂W₂‖ of every feed-forward layer, from first to last."""
    gradient = jax.grad(lambda params: loss(params, run, batch, None)[0])(params)
    return jax.vmap(jax.numpy.linalg.norm)(gradient.blocks.feed_forward.down)


def gradients(seed: int, depths: Sequence[int] = DEPTHS) -> dict[str, float]:
    """Return slopes with depth of the gradients at both ends of the stack, and ratios of pre-norm to post-norm."""
    batch = AT_START.task.load().batch(jax.random.key(seed), 0)
    numbers, ends = {}, {}
    for name, norm in NORMS.items():
        runs = [AT_START.replace(model=AT_START.model.replace(norm=norm, layers=n), seed=seed) for n in depths]
        found = [np.asarray(sizes(start(run, "scanned").params, run, batch)) for run in runs]
        for layer, index in (("first", 0), ("last", -1)):
            ends[name, layer] = [one[index] for one in found]
            slope = np.polyfit(np.log(depths), np.log(ends[name, layer]), 1)[0]
            numbers[f"slope with depth, {layer} layer, {name}-norm"] = float(slope)
    for layer in ("first", "last"):
        ratio = ends["pre", layer][-1] / ends["post", layer][-1]
        numbers[f"{layer} of 48 layers, log₂ of pre over post"] = float(np.log2(ratio))
    return numbers


def tuned(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the loss at the best learning rate of a seed, by placement, depth and warm-up."""
    best: dict[str, float] = {}
    for row in rows.values():
        name = f"{row['norm']}-norm, {row['layers']} layers, warm-up {row['warmup']}, best rate"
        best[name] = min(best.get(name, np.inf), row["validation_loss"])
    return best


at_start = Probe(
    name="gradients",
    question="How do the gradients at initialisation depend on depth?",
    measure=gradients,
    seeds=range(20, 32),
    claims=[
        Claim(
            "a reading of “much better at initialization”: pre-norm's gradients are under half of post-norm's in the "
            "first of 48 layers",
            lower={"quantity": "first of 48 layers, log₂ of pre over post"},
            than=-1,
        ),
        Claim(
            "in the first of 48 layers, the two are within a factor of two of each other",
            equal={"quantity": "first of 48 layers, log₂ of pre over post"},
            to=0,
            within=1,
        ),
        Claim(
            "a reading after Xiong et al.: under half in the last of 48 layers",
            lower={"quantity": "last of 48 layers, log₂ of pre over post"},
            than=-1,
        ),
        Claim(
            "pre-norm's last gradient falls as 1/√L: slope −½ on log axes",
            equal={"quantity": "slope with depth, last layer, pre-norm"},
            to=-0.5,
            within=0.1,
        ),
        Claim(
            "post-norm's last gradient stays: slope 0 on log axes",
            equal={"quantity": "slope with depth, last layer, post-norm"},
            to=0,
            within=0.1,
        ),
    ],
    caveats=["Xavier matrices, unit-variance embeddings, width 64, 4 heads, a batch of 32 × 32 bytes."],
)
in_training = Study(
    name="training",
    question="Where does pre-norm train better than post-norm, by depth, learning rate and warm-up?",
    baseline=BASELINE,
    axes=[
        Axis("model.norm", NORMS),
        Axis("model.layers", {"2": 2, "6": 6, "24": 24}),
        Axis("optimizer.learning_rate", {"0.001": 1e-3, "0.003": 3e-3, "0.01": 1e-2}, name="rate"),
        Axis("optimizer.warmup_steps", {"none": 0, "50": 50}, name="warmup"),
    ],
    seeds=range(20, 28),
    derive=tuned,
    claims=[
        Claim(
            "as written, “leading to much faster training”: 24 layers, no warm-up, rate 0.003",
            lower={"norm": "pre"},
            than={"norm": "post"},
            by=0.02,
        ),
        Claim(
            "with 2 layers, it does not matter by more than 0.05 nats",
            equal={"norm": "pre"},
            to={"norm": "post"},
            where={"layers": "2"},
            within=0.05,
        ),
        Claim(
            "the gap grows with depth, from 2 to 24 layers",
            lower={"norm": "pre"},
            than={"norm": "post"},
            where={"layers": "24"},
            more_than_where={"layers": "2"},
        ),
        Claim(
            "at the best rate of each, pre-norm still does better in 24 layers without warm-up",
            lower={"quantity": "pre-norm, 24 layers, warm-up none, best rate"},
            than={"quantity": "post-norm, 24 layers, warm-up none, best rate"},
            by=0.02,
        ),
        Claim(
            "warm-up helps post-norm, in 6 layers at the best rate of each",
            lower={"quantity": "post-norm, 6 layers, warm-up 50, best rate"},
            than={"quantity": "post-norm, 6 layers, warm-up none, best rate"},
        ),
        Claim(
            "Xiong et al.: pre-norm needs no warm-up; at its best rate in 24 layers, it gains below 0.02 nats by it",
            equal={"quantity": "pre-norm, 24 layers, warm-up 50, best rate"},
            to={"quantity": "pre-norm, 24 layers, warm-up none, best rate"},
            within=0.02,
        ),
    ],
    caveats=[
        "100 steps of a byte language model of width 32, 256 bytes a step: speed of learning, not where it ends. With "
        "larger steps and a longer run, warm-up brings 6 layers of post-norm back: experiments/norm_and_scale.py.",
        "The best of three rates is chosen on the seed that it is reported on, for both placements alike.",
    ],
)

case = Case(
    claim="Pre-norm has better gradients at initialisation than post-norm, and trains faster.",
    source="Self-Attention and Transformers, Add & Norm; Xiong et al. 2020, theorem 1 and section 4",
    evidence=[at_start, in_training],
    quick=[dataclasses.replace(at_start, measure=lambda seed: gradients(seed, [6, 48]), seeds=range(6))],
)
