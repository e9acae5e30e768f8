"""Does a stack of more blocks have more capacity?

The walk-through: a block maps N × D numbers to N × D numbers, so it can be stacked as often as one wants, to increase
the capacity. The summary of "An Introduction to Transformers" adds that enough layers learn complex representations.
Two meanings of capacity are tested.

- labels: memory. A fixed set of 512 random sequences, each with one of 16 random labels, is trained on and evaluated
  on. Nothing but memory lowers the loss from ln 16 = 2.77 nats. More blocks have more parameters too, so one block of
  twice the width, which has the parameters of four blocks in its matrices, is the control.
- lookup: steps of computation. The tokens are the 6 pairs (k, f(k)) of a random permutation f, one token per pair, then
  a query q; the target is f(f(q)). A block can fetch f(q) by one lookup, and the second lookup needs its result. One
  block is compared with two, and with a block of the parameters of two. The control with one lookup, f(q), shows that
  one block is not hindered otherwise.

Pilots (seeds 100 to 103). Labels after 400 steps: 1.21 nats with one block of width 16, 0.28 with two, 0.04 with four,
and 0.24 with one block of width 32; a rate of 0.003 was worse than 0.01 for all (2 seeds, 600 steps). Lookup after 500
steps of 64 sequences: one lookup 0.002 with one block; two lookups 1.11 with one block of width 32, 0.51 with two, 0.96
with one of width 46; guessing is ln 6 = 1.79. The seeds of two blocks differ by 0.3, since the loss falls late and at
different times. In the form below, four blocks were better than one by 1.27 nats at the labels, and two better than one
by 0.5 at two lookups.

Command: flaxformer claims 28
Cost: 64 runs in 8 programs, about 100 CPU-seconds; quick, 8 shorter runs in 2 programs: 15.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Batch,
    Claim,
    ModelConfig,
    NoPositions,
    Run,
    Study,
    SyntheticTask,
    Training,
    static,
)
from flaxformer.claims import Case
from flaxformer.tasks.synthetic import SyntheticSource


class FixedSource(SyntheticSource):
    """Source that draws from one fixed set of examples, in training and for evaluation."""

    examples: Batch

    def batch(self, key: jax.Array, step: int | jax.Array) -> Batch:
        size = self.examples.inputs.shape[0] * self.examples.inputs.shape[1]
        rows = jax.random.randint(jax.random.fold_in(key, step), (self.task.batch_size,), 0, size)
        return jax.tree.map(lambda x: x.reshape(size, -1)[rows], self.examples)

    def evaluation(self) -> Batch:
        return self.examples


class RandomLabels(SyntheticTask):
    """Random sequences, each with a random label at its last token; the evaluation set is the training set."""

    targets_in_inputs = False

    symbols: int = static(16, at_least=2)
    length: int = static(6, at_least=1)

    vocabulary = property(lambda self: self.symbols)
    sequence_length = property(lambda self: self.length)

    def example(self, key: jax.Array) -> Batch:
        tokens = jax.random.randint(key, (self.length + 1,), 0, self.symbols)
        last = jnp.arange(self.length) == self.length - 1
        return Batch(inputs=tokens[:-1], targets=tokens[1:], weights=last.astype(jnp.float32))

    def load(self) -> FixedSource:
        return FixedSource(task=self, examples=SyntheticSource(task=self).evaluation())


class Lookup(SyntheticTask):
    """Random permutation f of `keys` elements, one token per pair (k, f(k)), then a query q; the target: f^hops(q)."""

    targets_in_inputs = False

    keys: int = static(6, at_least=2)
    hops: int = static(2, at_least=1)

    vocabulary = property(lambda self: self.keys * (self.keys + 1))
    sequence_length = property(lambda self: self.keys + 1)

    def example(self, key: jax.Array) -> Batch:
        for_values, for_query = jax.random.split(key)
        order = jax.random.uniform(for_values, (self.keys,))
        values = (order[:, None] > order).sum(1)  # the rank of each number: a random permutation
        answer = query = jax.random.randint(for_query, (), 0, self.keys)
        for _ in range(self.hops):
            answer = values[answer]
        tokens = jnp.append(jnp.arange(self.keys) * self.keys + values, self.keys**2 + query)
        last = jnp.arange(tokens.size) == self.keys
        return Batch(inputs=tokens, targets=jnp.full_like(tokens, answer), weights=last.astype(jnp.float32))


def shapes(sizes: list[tuple[int, int]], **changes: Any) -> Axis:
    """Return an axis of models with these numbers of blocks and widths."""
    own = {
        f"{layers} × {width}": ModelConfig(layers=layers, d_model=width, attention=Attention(heads=2), **changes)
        for layers, width in sizes
    }
    return Axis("model", own, name="shape")


MEMORIES = shapes([(1, 16), (2, 16), (4, 16), (1, 32)], vocabulary=16)
READERS = shapes([(1, 32), (2, 32), (1, 46)], vocabulary=42, positions=NoPositions(), mask_pattern="bidirectional")
LABELS = Study(
    name="labels",
    question="How many random labels does a model memorise?",
    baseline=Run(
        model=MEMORIES.levels["1 × 16"],
        task=RandomLabels(batch_size=64, evaluation_batches=8),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=20),
        training=Training(steps=250),
    ),
    axes=[MEMORIES],
    seeds=range(20, 28),
    claims=[
        Claim(
            "as written, “increase the capacity”: four blocks memorise more labels than one, by above 0.2",
            lower={"shape": "4 × 16"},
            than={"shape": "1 × 16"},
            by=0.2,
        ),
        Claim(
            "as written, “however many times we want”: four blocks memorise more labels than two",
            lower={"shape": "4 × 16"},
            than={"shape": "2 × 16"},
        ),
        Claim(
            "with the condition that blocks bring parameters: one block of twice the width has more, by above 0.2",
            lower={"shape": "1 × 32"},
            than={"shape": "1 × 16"},
            by=0.2,
        ),
        Claim(
            "stronger form: at equal parameters, four blocks memorise more labels than one of twice the width",
            lower={"shape": "4 × 16"},
            than={"shape": "1 × 32"},
        ),
    ],
    caveats=[
        "250 steps at one learning rate: how fast labels are memorised, on the way to how many can be.",
        "One set of sequences for all seeds, which vary the weights and the order.",
        "Equal parameters are those of the matrices in the blocks; the wider model has a larger table too.",
    ],
)
LOOKUP = Study(
    name="lookup",
    question="How many lookups, one after another, can a model do?",
    baseline=Run(
        model=READERS.levels["1 × 32"],
        task=Lookup(batch_size=48, evaluation_batches=32),
        optimizer=AdamW(learning_rate=5e-3, warmup_steps=20),
        training=Training(steps=500),
    ),
    axes=[READERS, Axis("task.hops", {"1": 1, "2": 2})],
    combine="one-factor",
    seeds=range(20, 28),
    claims=[
        Claim("one block does one lookup: loss below 0.1", lower={"hops": "1"}, than=0.1),
        Claim(
            "as written, “if we have enough layers”: of two lookups, two blocks do more than one, by above 0.2",
            lower={"shape": "2 × 32"},
            than={"shape": "1 × 32"},
            by=0.2,
        ),
        Claim(
            "stronger form: at equal parameters, two blocks do more than a wider one, by above 0.1",
            lower={"shape": "2 × 32"},
            than={"shape": "1 × 46"},
            by=0.1,
        ),
    ],
    caveats=[
        "500 steps at one learning rate, at whose end two blocks are still improving.",
        "With 6 keys, one block can do better than guess, since it may read all pairs at once.",
    ],
)

case = Case(
    claim="Blocks can be stacked as often as one wants, and more blocks have more capacity.",
    source="Transformer (walk-through), encoder; An Introduction to Transformers (summary), residual connection",
    evidence=[LABELS, LOOKUP],
    quick=[
        dataclasses.replace(
            LABELS,
            baseline=LABELS.baseline.replace(training=Training(steps=200)),
            axes=[Axis("model", {name: MEMORIES.levels[name] for name in ("1 × 16", "4 × 16")}, name="shape")],
            seeds=range(4),
            claims=LABELS.claims[:1],
        )
    ],
)
