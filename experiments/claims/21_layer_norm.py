"""Does layer normalisation make the inputs of layers more stable, and does it help learning?

The notes on self-attention call layer norm one important learning aid, whose intuition is to reduce uninformative
variation in the activations and to give the next layer a more stable input; the summary of Turner 2023 says that it
stabilises learning. Claims 3 and 4 compare placements. Here the norm is compared with no norm at all.

Input: the size of a branch's input, the root mean square of its entries, in untrained models of 12 layers over random
tokens. Its variation over tokens is the standard deviation of its logarithm; over depth, the logarithm of the last
layer's size over the first's. In a second measurement every token is first multiplied by a factor of its own, between
½ and 2. That is the variation that a norm can remove.

Learning: a byte model of 6 layers, with pre-norm, post-norm and no norm, at four learning rates. They are compared at
the best rate of each seed, and, for the stability of learning, by the mean over the rates. A run that ends above its
initial loss counts as its initial loss. The share of stuck runs, which end above the loss of the bytes' frequencies
less 0.05 nats, is measured too.

Pilot (seed 100): over unequal tokens the sizes varied by less than 1e-5 with a norm and by 0.16 without; without one,
they grew by a factor of 315 over depth. Best losses: 2.82 with pre-norm, 3.17 with post-norm, 3.26 without; at a rate
of 0.03, 2.87, 3.17 and 2700. Of four rates, three more were stuck without a norm than with pre-norm, and as many as
with post-norm (seeds 100 to 103); since every seed gave the same, the claims are about losses.

Command: flaxformer claims 21
Cost: 96 runs in 3 programs and a probe, about 120 CPU-seconds; quick, the probe with 4 seeds: 15.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    NO_NORM,
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Claim,
    Embeddings,
    ModelConfig,
    NoHead,
    NoPositions,
    Probe,
    Run,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case

NORMS = {"pre": PRE, "post": POST, "none": NO_NORM}
DEPTH = 12
INIT, ACTIVATIONS = jax.jit(model.init), jax.jit(model.apply_with_intermediates)
UNTRAINED = ModelConfig(
    layers=DEPTH,
    d_model=32,
    attention=Attention(heads=2),
    inputs=Embeddings(),
    positions=NoPositions(),
    head=NoHead(),
)


def input_sizes(norm: str, seed: int, is_scaled: bool) -> np.ndarray:
    """Return the size of the inputs of the feed-forward layers [layers, tokens]."""
    config = UNTRAINED.replace(norm=NORMS[norm])
    params = INIT(jax.random.key(seed), config)
    x = jax.random.normal(jax.random.key(seed + 1), (64, config.d_model))
    if is_scaled:
        x = x * jnp.exp2(jax.random.uniform(jax.random.key(seed + 2), (64, 1), minval=-1, maxval=1))
    _, kept = ACTIVATIONS(params, config, x)
    return np.sqrt(np.square([block.feed_forward.input for block in kept.blocks]).mean(-1))


def stability(seed: int) -> dict[str, float]:
    """Return how much the size of a layer's input varies over tokens and over depth."""
    numbers = {}
    for norm in NORMS:
        for name, is_scaled in (("equal", False), ("unequal", True)):
            logs = np.log(input_sizes(norm, seed, is_scaled))
            numbers[f"over {name} tokens, {norm}"] = logs.std(-1).mean()
            numbers[f"over depth, {name} tokens, {norm}"] = abs(logs[-1].mean() - logs[0].mean())
    return numbers


@functools.cache
def frequencies() -> float:
    """Return the loss of a model that predicts each byte by its frequency."""
    return TEXT.references()["unigram"]


def tuned(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the best and the mean loss over the learning rates of a seed, and the share of stuck runs, by norm."""
    numbers = {}
    for norm in NORMS:
        own = [row for row in rows.values() if row["norm"] == norm]
        losses = [float(np.fmin(row["validation_loss"], row["initial_validation_loss"])) for row in own]
        numbers[f"best loss, {norm}"] = min(losses)
        numbers[f"share stuck, {norm}"] = float(np.mean([loss > frequencies() - 0.05 for loss in losses]))
        numbers[f"mean loss, {norm}"] = float(np.mean(losses))
    return numbers


TEXT = StandardLibrary(length=32, batch_size=8)

STABILITY = Probe(
    name="inputs",
    question="How much does the size of a layer's input vary, with and without a norm?",
    measure=stability,
    seeds=range(20, 28),
    claims=[
        *(
            Claim(
                f"as written, “reduce uninformative variation”: with {norm}-norm, tokens of unequal size give a "
                "feed-forward layer inputs of one size, within 1 %",
                lower={"quantity": f"over unequal tokens, {norm}"},
                than=0.01,
            )
            for norm in ("pre", "post")
        ),
        Claim(
            "without a norm, the sizes of the inputs differ between tokens by above 5 %",
            higher={"quantity": "over unequal tokens, none"},
            than=0.05,
        ),
        *(
            Claim(
                f"as written, “more stable input”: with {norm}-norm, the inputs of the last of {DEPTH} layers have the "
                "size of those of the first, within 1 %",
                lower={"quantity": f"over depth, unequal tokens, {norm}"},
                than=0.01,
            )
            for norm in ("pre", "post")
        ),
        Claim(
            "without a norm, the size of the inputs changes with depth by above a factor of 10",
            higher={"quantity": "over depth, unequal tokens, none"},
            than=math.log(10),
        ),
    ],
    caveats=["Random weights and random tokens; sizes alone, not directions."],
)
LEARNING = Study(
    name="learning",
    question="What does the norm bring at several learning rates?",
    baseline=Run(
        model=ModelConfig(layers=6, d_model=32, attention=Attention(heads=2)),
        task=TEXT,
        optimizer=AdamW(learning_rate=3e-3),
        training=Training(steps=100),
    ),
    axes=[
        Axis("model.norm", NORMS),
        Axis("optimizer.learning_rate", {"0.001": 1e-3, "0.003": 3e-3, "0.01": 1e-2, "0.03": 3e-2}, name="rate"),
    ],
    seeds=range(20, 28),
    derive=tuned,
    claims=[
        *(
            Claim(
                f"as written, “important learning aid”: at the best rate of each, {norm}-norm is better than no "
                "norm, by above 0.02 nats",
                lower={"quantity": f"best loss, {norm}"},
                than={"quantity": "best loss, none"},
                by=0.02,
            )
            for norm in ("pre", "post")
        ),
        *(
            Claim(
                f"as written, “stabilise learning”: averaged over the learning rates, {norm}-norm is better than no "
                "norm, by above 0.1 nats",
                lower={"quantity": f"mean loss, {norm}"},
                than={"quantity": "mean loss, none"},
                by=0.1,
            )
            for norm in ("pre", "post")
        ),
    ],
    caveats=[
        "100 steps of a byte model of 6 layers of width 32, at four learning rates without warm-up.",
        "The best rate is chosen on the seed that it is reported on, with each norm alike.",
        "Without a norm, the initial weights are those that suit a model with norms; initial weights that are made for "
        "models without norms (Zhang et al. 2019) are not tested.",
    ],
)
case = Case(
    claim="Layer normalisation reduces uninformative variation of activations, gives the next layer a more stable "
    "input, and helps learning.",
    source="Self-Attention and Transformers, layer norm; An Introduction to Transformers (summary), standardisation; "
    "Ba et al. 2016",
    evidence=[STABILITY, LEARNING],
    quick=[dataclasses.replace(STABILITY, seeds=range(4))],
)
