"""Do separate matrices for queries and keys matter?

Turner uses U_q and U_k to introduce an asymmetry of the relationship between tokens. The notes on self-attention say
that several matrices allow different views of a token for the roles of query, key and value, and "What Happens in A
Transformer Layer" that the maps are distinct. The alternative is one matrix for both (Kitaev et al. 2020 use one):
the logit of a pair of tokens is then the same in both directions. That is exact, and tested first, with the pattern
after the softmax, which one matrix does not make symmetric, since every row has its own sum.

What the asymmetry is good for is tested by a task of our own. Each of 8 tokens holds an own name, the name of another
token and a value; names are random vectors, and the tokens name each other in a circle. Asked for the value of the
token that they name, a layer of attention needs "you name me" and "I name you" to be different relations. With
symmetric logits they are not, whatever the width, and a token can at best answer with the mean of both values, at half
the variance. The condition is a relation that is symmetric: tokens in pairs, each naming the other.

Then text, with equal widths, and with heads of twice the width where one matrix does for two, so that the numbers of
parameters are equal.

Pilot (seeds 100 to 103): with one matrix the logits were symmetric exactly, and the weights differed by 0.14 of the
largest; with two matrices, the logits by 1.3. Names in a circle: squared errors of 0.05 with separate matrices and 0.99
with one, of any width; in pairs, one of 4 runs with separate matrices failed. Text: separate matrices were better by
0.03 nats, and worse by 0.04 at equal parameters.

Command: flaxformer claims 22
Cost: 96 runs in 9 programs and a probe, about 200 CPU-seconds; quick, the probe alone: 10.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Batch,
    Claim,
    Embeddings,
    ModelConfig,
    NoHead,
    NoPositions,
    Probe,
    Regressor,
    Run,
    StandardLibrary,
    Study,
    Training,
    TwoTargetAverage,
    model,
    static,
)
from flaxformer.claims import Case
from flaxformer.core.params import count

INIT, ACTIVATIONS = jax.jit(model.init), jax.jit(model.apply_with_intermediates)


def matrices(heads: int, width: int) -> dict[str, Attention]:
    """Return attention with separate matrices, with one, and with one of twice the width."""
    own = Attention(heads=heads, d_head=width, d_value=width)
    return {
        "separate": own,
        "one": own.replace(share_query_key=True),
        "one of twice the width": own.replace(share_query_key=True, d_head=2 * width),
    }


class NamedValue(TwoTargetAverage):
    """Predict, at every token, the value of the token that it names.

    A token is (own name, named name, value). Tokens name each other in one circle, or in pairs. Their order is fixed,
    since the models have no positions and no mask.
    """

    relation: str = static("circle", choices=("circle", "pairs"))

    @property
    def sequence_length(self) -> int:
        return self.items

    @property
    def head(self) -> Regressor:
        return Regressor(numbers=self.value_width, pool="none")

    def example(self, key: jax.Array) -> Batch:
        for_names, for_values = jax.random.split(key)
        names = jax.random.normal(for_names, (self.items, self.key_width))
        values = jax.random.normal(for_values, (self.items, self.value_width))
        place = jnp.arange(self.items)
        named = (place + 1) % self.items if self.relation == "circle" else place ^ 1
        tokens = jnp.concatenate([names, names[named], values], axis=1)
        return Batch(inputs=tokens, targets=values[named], weights=jnp.ones(self.items))

    def references(self) -> dict[str, float]:
        """Return the expected losses of predicting the mean of both neighbours in the circle, and of predicting 0."""
        return {"mean of both": 1 / 2, "zero": 1.0}


def symmetry(seed: int) -> dict[str, float]:
    """Return how far logits and patterns are from symmetric, relative to their largest entry."""
    x = jax.random.normal(jax.random.key(seed + 1), (16, 32))
    numbers = {}
    for name, attention in matrices(1, 32).items():
        config = ModelConfig(
            layers=1,
            d_model=32,
            attention=attention,
            inputs=Embeddings(),
            positions=NoPositions(),
            mask_pattern="bidirectional",
            head=NoHead(),
        )
        params = INIT(jax.random.key(seed), config)
        _, kept = ACTIVATIONS(params, config, x)
        for what in ("logits", "weights"):
            found = np.asarray(getattr(kept.blocks[0].attention, what))[0]
            numbers[f"asymmetry of {what}, {name}"] = float(np.abs(found - found.T).max() / np.abs(found).max())
    specs = {name: model.specs(TEXT.replace(attention=own)) for name, own in matrices(4, 16).items()}
    for name in ("one", "one of twice the width"):
        numbers[f"parameters of {name} over separate"] = count(specs[name]) / count(specs["separate"])
    return numbers


def tuned(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the loss at the best learning rate of a seed."""
    best: dict[str, float] = {}
    for row in rows.values():
        name = f"loss, {row['matrices']}"
        best[name] = min(best.get(name, np.inf), row["validation_loss"])
    return best


TEXT = ModelConfig(layers=2, d_model=64, attention=matrices(4, 16)["separate"])
TASK = NamedValue(items=8, key_width=8, value_width=4, batch_size=32, evaluation_batches=16)
PROBE = Probe(
    name="symmetry",
    question="Are the logits of two tokens the same in both directions?",
    measure=symmetry,
    seeds=range(20, 28),
    claims=[
        Claim(
            "as written, “a notion of asymmetry”: with separate matrices, the logits of two tokens differ between the "
            "directions by above a tenth of the largest logit",
            higher={"quantity": "asymmetry of logits, separate"},
            than=0.1,
        ),
        Claim(
            "also with one matrix, the weights after the softmax are not symmetric: they differ by above 1 %",
            higher={"quantity": "asymmetry of weights, one"},
            than=0.01,
        ),
    ],
    caveats=["Random weights and random tokens, one head, no positions."],
)
EXACT = Probe(
    name="one_matrix",
    question="What does one matrix for queries and keys make exactly equal?",
    measure=symmetry,
    seeds=[0],
    exact=True,
    claims=[
        Claim(
            "with one matrix for queries and keys, the logits are symmetric",
            equal={"quantity": "asymmetry of logits, one"},
            to=0,
            within=1e-5,
        ),
        Claim(
            "a language model with one matrix of twice the width has as many parameters as one with separate matrices",
            equal={"quantity": "parameters of one of twice the width over separate"},
            to=1,
            within=0.001,
        ),
    ],
)
NAMES = Study(
    name="names",
    question="What does one matrix for queries and keys cost where a relation has a direction?",
    baseline=Run(
        model=ModelConfig(
            layers=1,
            d_model=32,
            attention=matrices(1, 16)["separate"],
            positions=NoPositions(),
            mask_pattern="bidirectional",
            inputs=TASK.inputs,
            head=TASK.head,
        ),
        task=TASK,
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=50),
        training=Training(steps=300),
    ),
    axes=[
        Axis("model.attention", matrices(1, 16), name="matrices"),
        Axis("task.relation", {"circle": "circle", "pairs": "pairs"}),
    ],
    seeds=range(20, 28),
    claims=[
        Claim(
            "as written, “different views of the”: where a relation has a direction, separate matrices reach a lower "
            "loss than one, by above 0.1",
            lower={"matrices": "separate"},
            than={"matrices": "one"},
            by=0.1,
        ),
        Claim(
            "at equal parameters, separate matrices reach a lower loss too, by above 0.1",
            lower={"matrices": "separate"},
            than={"matrices": "one of twice the width"},
            by=0.1,
        ),
        Claim(
            "with one matrix, the loss is not below that of the mean of both directions, 0.5, by more than 0.05",
            higher={"matrices": "one"},
            than=0.45,
        ),
        Claim(
            "with separate matrices, the loss is below half of that, 0.25",
            lower={"matrices": "separate"},
            than=0.25,
        ),
        Claim(
            "with the condition that the relation is symmetric: separate matrices are no different from one by 0.1",
            equal={"matrices": "separate"},
            to={"matrices": "one"},
            where={"relation": "pairs"},
            within=0.1,
        ),
        Claim(
            "separate matrices help more where the relation has a direction than where it has none",
            lower={"matrices": "separate"},
            than={"matrices": "one"},
            where={"relation": "circle"},
            more_than_where={"relation": "pairs"},
        ),
    ],
    caveats=["A task made to have a direction; one layer with one head, one learning rate and 300 steps."],
)
ON_TEXT = Study(
    name="text",
    question="What does one matrix for queries and keys cost on text?",
    baseline=Run(
        model=TEXT,
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3),
        training=Training(steps=200),
    ),
    axes=[
        Axis("model.attention", matrices(4, 16), name="matrices"),
        Axis("optimizer.learning_rate", {"0.003": 3e-3, "0.01": 1e-2}, name="rate"),
    ],
    seeds=range(20, 28),
    derive=tuned,
    claims=[
        Claim(
            "as written, “distinct from one another”: on text, separate matrices are better than one, by above 0.02 "
            "nats",
            lower={"quantity": "loss, separate"},
            than={"quantity": "loss, one"},
            by=0.02,
        ),
        Claim(
            "with the condition of equal parameters: separate matrices are no different from one by 0.02 nats",
            equal={"quantity": "loss, separate"},
            to={"quantity": "loss, one of twice the width"},
            within=0.02,
        ),
    ],
    caveats=[
        "200 steps of a byte model of two layers, at the better of two learning rates, chosen on the seed that it is "
        "reported on.",
    ],
)

case = Case(
    claim="Separate matrices for queries and keys introduce an asymmetry between tokens, which gives a token different "
    "views for its different roles.",
    source="An Introduction to Transformers (summary), the multi-head self-attention layer; Self-Attention and "
    "Transformers, key-query-value self-attention; What Happens in A Transformer Layer, self-attention",
    evidence=[PROBE, EXACT, NAMES, ON_TEXT],
    quick=[PROBE, EXACT],
)
