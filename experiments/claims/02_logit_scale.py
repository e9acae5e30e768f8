"""Does attention saturate without the division by √d, and does that harm training?

The texts: dot products of random vectors grow as √d, so logits are divided by √d; Vaswani et al. 2017 suspect that
without it the softmax has extremely small gradients. The summary of Turner divides by √D, the width of the model,
though its heads have K < D numbers. Three conditions that the texts do not mention are tested too, the last of them
the effect on training:

- The typical gradient vanishes, not every gradient. In a pilot at d = 1024 (seeds 100 to 102), the median over queries
  was a fiftieth of its value with 1/√d, but the mean was nine times as large, because the few queries with two nearly
  equal largest logits have gradients that grow as √d. The claim is about the median; the mean is a claim of its own.
- With several heads, √D is too large: logits have variance K/D, and the weights start nearly uniform.
- In training, the matrices can learn the scale, so the effect is on speed and on wide heads. In a pilot (seeds 100 to
  102), no scale cost one head of width 64 0.10 nats and eight of width 8 0.01; 1/d cost 0.02 and 0.01.

The study trains one head of width 64 and eight of width 8, one program each; the scale is a number that the program
reads. For eight heads of width 8, the level "1/d" divides by √64 and is therefore the 1/√D of the summary.
Cost: 48 runs in 2 programs and two probes, about 170 CPU seconds; --quick, the probes alone, 10.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    ModelConfig,
    NoPositions,
    Probe,
    Run,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case
from flaxformer.nn.attention import attention_weights

WIDTHS = [16, 64, 256, 1024]
EXPONENTS = {"none": 0.0, "1/√d": 0.5, "1/d": 1.0}
QUERIES, KEYS = 1024, 64


def entropy(weights: np.ndarray) -> float:
    """Return the mean entropy of rows of attention weights, as a fraction of its maximum, ln KEYS."""
    return float(-(weights * np.log(weights + 1e-30)).sum(-1).mean() / np.log(weights.shape[-1]))


def attend(rng: np.random.Generator, width: int, scale: float) -> tuple[float, np.ndarray]:
    """Return the entropy of the weights and |∂y/∂q| per query, for y = Σ_s A_s v_s and inputs drawn from N(0, 1)."""
    query, key, value = (rng.normal(size=(n, d)) for n, d in ((QUERIES, width), (KEYS, width), (KEYS, 1)))
    weights = np.asarray(attention_weights(jnp.asarray(query), jnp.asarray(key), scale=scale))
    gradient = scale * (weights * (value.T - weights @ value)) @ key
    return entropy(weights), np.linalg.norm(gradient, axis=-1)


def saturation(seed: int) -> dict[str, float]:
    """Return entropies, and gradients relative to those with 1/√d, by scale and width."""
    rng = np.random.default_rng(seed)
    numbers, medians, means = {}, {}, {}
    for name, exponent in EXPONENTS.items():
        for width in WIDTHS:
            numbers[f"entropy, {name}, d = {width}"], sizes = attend(rng, width, width**-exponent)
            medians[name, width], means[name, width] = np.median(sizes), sizes.mean()
        curve = [medians[name, width] for width in WIDTHS]
        numbers[f"slope of the median gradient, {name}"] = np.polyfit(np.log(WIDTHS), np.log(curve), 1)[0]
    for size, found in (("median", medians), ("mean", means)):
        numbers[f"{size} gradient, none over 1/√d, d = 1024"] = found["none", 1024] / found["1/√d", 1024]
    return numbers


def heads(seed: int) -> dict[str, float]:
    """Return the entropy of eight heads of width 8 at initialisation, with the scale of the head and of the model."""
    numbers = {}
    for width in ("head", "model"):
        config = ModelConfig(
            layers=1,
            attention=Attention(heads=8, scale_width=width),
            mask_pattern="bidirectional",
            positions=NoPositions(),
            vocabulary=KEYS,
        )
        _, kept = model.apply_with_intermediates(
            model.init(jax.random.key(seed), config), config, jnp.arange(KEYS)[None]
        )
        numbers[f"entropy, 1/√d of the {width}"] = entropy(np.asarray(kept.blocks[0].attention.weights))
    return numbers


saturated = Probe(
    name="saturation",
    question="What becomes of the weights and their gradients when d grows, with and without a scale?",
    measure=saturation,
    seeds=range(20, 30),
    claims=[
        Claim(
            "without a scale, the weights saturate: entropy below a tenth of its maximum at d = 1024",
            lower={"quantity": "entropy, none, d = 1024"},
            than=0.1,
        ),
        Claim(
            "divided by √d, their entropy is the same at d = 1024 as at d = 16",
            equal={"quantity": "entropy, 1/√d, d = 1024"},
            to={"quantity": "entropy, 1/√d, d = 16"},
            within=0.02,
        ),
        Claim(
            "divided by d, they flatten: entropy above 0.99 of its maximum at d = 1024",
            higher={"quantity": "entropy, 1/d, d = 1024"},
            than=0.99,
        ),
        Claim(
            "Vaswani et al., “extremely small gradients”: without a scale, below a tenth at d = 1024, on average",
            lower={"quantity": "mean gradient, none over 1/√d, d = 1024"},
            than=0.1,
        ),
        Claim(
            "corrected, the typical gradient is small: below a tenth at d = 1024, in the median",
            lower={"quantity": "median gradient, none over 1/√d, d = 1024"},
            than=0.1,
        ),
        Claim(
            "divided by √d, the typical gradient does not depend on d: slope 0 on log axes",
            equal={"quantity": "slope of the median gradient, 1/√d"},
            to=0,
            within=0.05,
        ),
    ],
    caveats=["Queries, keys and values are independent and normal, as at initialisation; trained ones are not."],
)
flattened = Probe(
    name="heads",
    question="Which width belongs under the root when there are heads?",
    measure=heads,
    seeds=range(20, 30),
    claims=[
        Claim(
            "stronger form: √D, as in the summary, gives eight heads the entropy of √d, within 0.02 of the maximum",
            equal={"quantity": "entropy, 1/√d of the model"},
            to={"quantity": "entropy, 1/√d of the head"},
            within=0.02,
        ),
        Claim(
            "√D flattens the weights of eight heads: entropy above 0.97 of its maximum",
            higher={"quantity": "entropy, 1/√d of the model"},
            than=0.97,
        ),
    ],
)
trained = Study(
    name="training",
    question="What does the scale of the logits change in training?",
    baseline=Run(
        model=ModelConfig(layers=4, d_model=64, attention=Attention(heads=1)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3),
        training=Training(steps=200),
    ),
    axes=[
        Axis("model.attention.scale_exponent", EXPONENTS, name="scale"),
        Axis("model.attention.heads", {"one of width 64": 1, "eight of width 8": 8}),
    ],
    seeds=range(20, 28),
    claims=[
        Claim(
            "for one wide head, dividing by √d beats not scaling",
            lower={"scale": "1/√d"},
            than={"scale": "none"},
            where={"heads": "one of width 64"},
            by=0.02,
        ),
        Claim(
            "for eight narrow heads, it does not matter by more than 0.02 nats",
            equal={"scale": "1/√d"},
            to={"scale": "none"},
            where={"heads": "eight of width 8"},
            within=0.02,
        ),
        Claim(
            "for one wide head, dividing by √d beats dividing by d",
            lower={"scale": "1/√d"},
            than={"scale": "1/d"},
            where={"heads": "one of width 64"},
        ),
        Claim(
            "for eight narrow heads, dividing by their √d beats dividing by √D",
            lower={"scale": "1/√d"},
            than={"scale": "1/d"},
            where={"heads": "eight of width 8"},
        ),
    ],
    caveats=[
        "A byte language model of 4 pre-norm layers, 200 steps, one learning rate.",
        "Under post-norm with warm-up, 1/d does better than 1/√d: experiments/norm_and_scale.py.",
    ],
)

case = Case(
    claim="Without division by √d, the weights of attention saturate as d grows, and its gradients become small.",
    source="Transformers like a physicist, on the √d factor; Self-Attention and Transformers, on logit scaling; "
    "An Introduction to Transformers (summary), the MHSA layer; Vaswani et al. 2017, section 3.2.1",
    evidence=[saturated, flattened, trained],
    quick=[dataclasses.replace(saturated, seeds=range(5)), dataclasses.replace(flattened, seeds=range(5))],
)
