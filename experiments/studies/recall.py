"""Which token mixers recall at a width of 64, and up to which length?

Arora et al. 2023, "Zoology: Measuring and improving recall in efficient language models" (arXiv 2312.04927), figure 2:
attention of width 64 solves multi-query associative recall at all lengths, and gated convolutions need a width that
grows with the length. Settings are those of the authors' configuration of that figure
(github.com/HazyResearch/zoology at d88d6f5, iclr24_zoology_figure2): 8,192 tokens, 2 layers without feed-forward
networks, one head, learned positions for attention alone, a tied head, batches of 512 or, at the longest, 256,
learning rates 10^-4 to 10^-2 in four equal steps, weight decay 0.1, and the best rate counts. The figure itself was not
checked at the source. It has attention and, in the configuration, Based; the gated delta rule and gated linear
attention are added here, in hybrids of the form of Based, whose first layer is a short convolution.

Differences: the dense form of the task, all pairs and then as many queries, has no power-law gaps, so that a length
holds four times the pairs (16, 32, 64 in place of 4, 8, 16 at lengths 64, 128, 256), and sequences are one token
shorter; keys of an example are distinct by three rounds of random affine maps and shifts, in place of a permutation of
4,096; new examples in each of 3,000 steps, where the authors take 64 epochs of 100,000 examples, 12,500 steps, and stop
at an accuracy of 99 %; a loss below 0.05 nats counts as solved, since an accuracy of 1 at all seeds has no interval;
cosine by step; no dropout (the authors drop the embedding and attention's weights, each at 0.1), since no example
recurs; blocks do not add a norm of their input, as the authors' do in place of a feed-forward network; plain short
convolutions, without gates, and no long ones.

Command: flaxformer run experiments/studies/recall.py
Cost: 300 runs in 15 compiled programs, of 5e15 to 2e16 FLOP each per 20 runs: about 25 minutes of one H100 or H200 in
    four processes, estimated; the five programs of length 64 take 5 of them. Not for a CPU.
Expected: attention solves the task at all lengths, and at the longest is better than each of the others.
Result: not yet.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Batch,
    Block,
    Claim,
    Cosine,
    LanguageModel,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    Normal,
    Points,
    Run,
    Study,
    Tokens,
    Training,
)
from flaxformer.catalog.based import TaylorAttention
from flaxformer.catalog.gated_delta_rule import GatedDeltaRule
from flaxformer.catalog.gated_linear_attention import GatedLinearAttention
from flaxformer.catalog.short_convolution import ShortConvolution
from flaxformer.tasks.synthetic import next_token

WIDTH, SOLVED = 64, 0.05
RATES = {"1e-4": 1e-4, "4.6e-4": 10**-3.3333, "2.2e-3": 10**-2.6667, "1e-2": 1e-2}
PAIRS = {"64": (16, 512), "128": (32, 512), "256": (64, 256)}
"""Pairs of a sequence and sequences of a batch, by length."""
MIXERS = {
    "Based": TaylorAttention(heads=1, d_key=8),
    "gated delta rule": GatedDeltaRule(heads=1, d_key=WIDTH, d_value=WIDTH),
    "gated linear attention": GatedLinearAttention(heads=1, d_key=WIDTH // 2, d_value=WIDTH),
    "short convolution": ShortConvolution(width=3),
}
"""Mixers of the second layer; the first is a short convolution."""


class Recall(AssociativeRecall):
    """Associative recall whose distinct keys are drawn without permuting all keys, of which there is a power of two."""

    def example(self, key: Array) -> Batch:
        for_keys, for_values, for_queries = jax.random.split(key, 3)
        keys = distinct(for_keys, self.pairs, self.keys)
        values = self.keys + jax.random.randint(for_values, (self.pairs,), 0, self.values)
        asked = jax.random.randint(for_queries, (self.queries,), 0, self.pairs)
        tokens = jnp.stack([jnp.concatenate([keys, keys[asked]]), jnp.concatenate([values, values[asked]])], axis=1)
        place = jnp.arange(tokens.size)
        return next_token(tokens.reshape(-1), (place >= 2 * self.pairs) & (place % 2 == 1))


def distinct(key: Array, count: int, below: int) -> Int[Array, "count"]:
    """Return distinct numbers below a power of two: three rounds of x ← a x + b modulo it, a odd, and x ← x ⊕ (x >> s).

    Each round is a bijection, since an odd a has an inverse, and the upper bits that a shift reads do not change.
    """
    bits = below.bit_length() - 1
    x = jnp.arange(count)
    for factor, offset in jax.random.randint(key, (3, 2), 0, below):
        x = ((2 * factor + 1) * x + offset) % below
        x = x ^ (x >> (bits + 1) // 2)
    return x


def derive(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the loss and the accuracy of each mixer at each length, at the rate with the least loss."""
    numbers = {}
    for length in PAIRS:
        for mixer in ("attention", *MIXERS):
            at = [row for arm, row in rows.items() if arm.startswith(f"length={length},mixer={mixer},")]
            if at:
                best = min(at, key=lambda row: row["validation_loss"])
                numbers[f"{mixer} at {length}"] = best["validation_loss"]
                numbers[f"accuracy of {mixer} at {length}"] = best["validation_accuracy"]
    return numbers


def hybrid(mixer: Any) -> dict[str, Any]:
    """Return the changes for a short convolution and then a mixer, without positions."""
    return {
        "model.pattern": (Block(attention=ShortConvolution(width=3)), Block(attention=mixer)),
        "model.positions": NoPositions(),
    }


study = Study(
    name="recall",
    question="Which token mixers recall at a width of 64, and up to which length?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=8192,
            layers=2,
            d_model=WIDTH,
            attention=Attention(heads=1),
            feed_forward=None,
            positions=LearnedPositions(max_length=256, std=0.02),
            head=LanguageModel(tied=True, wide_logits=False),
            inputs=Tokens(std=0.02),
            initializer=Normal(deviation=0.02),
        ),
        task=Recall(pairs=16, queries=16, keys=4096, values=4096, batch_size=512, evaluation_batches=6),
        optimizer=AdamW(learning_rate=RATES["2.2e-3"], decay=Cosine(), beta2=0.999, weight_decay=0.1),
        training=Training(steps=3000, evaluate_every=500, precision="bfloat16"),
    ),
    axes=[
        Points(
            "length",
            {
                length: {"task.pairs": pairs, "task.queries": pairs, "task.batch_size": batch}
                for length, (pairs, batch) in PAIRS.items()
            },
        ),
        Points("mixer", {"attention": {}} | {name: hybrid(mixer) for name, mixer in MIXERS.items()}),
        Axis("optimizer.learning_rate", RATES, name="rate"),
    ],
    seeds=range(5),
    derive=derive,
    claims=[
        *(
            Claim(
                f"attention solves the task at length {length}: a loss below {SOLVED} nats",
                lower={"quantity": f"attention at {length}"},
                than=SOLVED,
            )
            for length in PAIRS
        ),
        *(
            Claim(
                f"{mixer} does not reach attention's loss at length 256, by {SOLVED} nats",
                higher={"quantity": f"{mixer} at 256"},
                than={"quantity": "attention at 256"},
                by=SOLVED,
            )
            for mixer in MIXERS
        ),
        Claim(
            "the loss of the short convolution is above 1 nat at length 64: its window has no pair",
            higher={"quantity": "short convolution at 64"},
            than=1.0,
        ),
    ],
    caveats=[
        "One width; the learning rate of each mixer is the best of four at the seeds that are compared, as published.",
        "Short convolutions stand in the hybrids' first layer; no gated long convolution is compared.",
    ],
)
