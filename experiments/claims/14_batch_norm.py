"""Why layer normalisation, and not batch normalisation?

The text: the two take their statistics over different dimensions; batch normalisation (BN) cannot process a batch of
one and needs separate logic for prediction; and both extend to more dimensions, layer normalisation (LN) to (L, D). In
a Transformer each of these has a condition:

- the batch of BN consists of tokens, so one sequence can be trained on; one token cannot: it is its own mean and gives
0; - a fault worse than N = 1 is not mentioned: in training BN mixes the tokens of a sequence, so the past sees the
future; - LN over (L, D) does so in prediction too (E16 in FOUNDING_TEXTS.md).

These are facts of the program, read from the outputs after one token changed. The study measures their cost: LN against
BN with 16 sequences per batch and with one, and LN over (L, D), whose validation loss is not meaningful, because its
statistics contain the targets. `loss_with_batch_statistics` is the loss of BN if prediction worked as training does.

In a pilot (seeds 100 to 102), BN cost 0.14 nats with 16 sequences per batch and 0.52 with one. With one, its running
statistics were part of that (0.12, not certain); with 16 they did no harm, and the cost was in the training itself.

Cost: 48 runs in 6 programs and a probe, about 140 CPU seconds; --quick, the probe alone, 10.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    AdamW,
    Axis,
    BatchNorm,
    Claim,
    LayerNorm,
    ModelConfig,
    Probe,
    Run,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case
from flaxformer.nn.norms import batch_norm, moments

NORMS = {"LN": LayerNorm(), "BN": BatchNorm(), "LN over L × D": LayerNorm(over="sequence")}
SMALL = ModelConfig(layers=2, d_model=32)
KEY = jax.random.key(0)


def leaks(seed: int) -> dict[str, float]:
    """Return the change of outputs that should not change when the last token of the first of two sequences does."""
    tokens = jax.random.randint(KEY, (2, 16), 0, 255)
    changed = tokens.at[0, -1].add(1)
    numbers = {}
    for name, norm in NORMS.items():
        config = SMALL.replace(norm_kind=norm)
        params = model.init(KEY, config)
        for mode, key in (("training", KEY), ("prediction", None)):
            outputs = [model.apply(params, config, x, dropout_key=key) for x in (tokens, changed)]
            moved = np.abs(outputs[1] - outputs[0])
            numbers[f"the past moves, {name}, {mode}"] = float(moved[0, :-1].max())
            numbers[f"the other sequence moves, {name}, {mode}"] = float(moved[1].max())
    return numbers | batches_of_one()


def batches_of_one() -> dict[str, float]:
    """Return 1 if BN trains on one sequence and on one token, else 0; and the result of its formula for one token."""
    config = SMALL.replace(norm_kind=NORMS["BN"])
    params, numbers = model.init(KEY, config), {}
    for name, length in (("sequence of 16 tokens", 16), ("token", 1)):
        try:
            output = model.apply(params, config, jnp.zeros((1, length), int), dropout_key=KEY)
            numbers[f"BN trains on one {name}"] = float(jnp.isfinite(output).all())
        except ValueError:
            numbers[f"BN trains on one {name}"] = 0.0
    x = jax.random.normal(KEY, (1, 32))
    mean, variance = moments(x, (0,))
    numbers["largest output of BN's formula for one token"] = float(jnp.abs(batch_norm(x, mean[0], variance[0])).max())
    return numbers


def with_batch_statistics(params: Any, run: Run) -> dict[str, jax.Array]:
    """Return the validation loss with each batch normalised by its own statistics, as in training."""

    def one(batch: Any) -> tuple[jax.Array, jax.Array]:
        output = model.apply(params, run.model, batch.inputs, dropout_key=KEY)
        return run.model.head.loss(output, batch.targets, batch.weights)

    total, count = jax.lax.map(one, run.task.load().evaluation())
    return {"loss_with_batch_statistics": total.sum() / count.sum()}


def discrepancy(rows: Any) -> dict[str, float]:
    """Return the loss that BN adds between training and prediction, by the number of sequences per batch."""
    own = {batch: rows[f"norm_kind=BN,batch={batch}"] for batch in ("16", "1")}
    return {
        f"prediction less training statistics, BN, batch {batch}": row["validation_loss"]
        - row["loss_with_batch_statistics"]
        for batch, row in own.items()
    }


def zero(text: str, quantity: str) -> Claim:
    """Return a claim that a number is exactly zero."""
    return Claim(text, equal={"quantity": quantity}, to=0, within=1e-12)


facts = Probe(
    name="facts",
    question="What does each norm let through, and what does it need?",
    measure=leaks,
    seeds=[0],
    exact=True,
    claims=[
        zero("under LN, the past does not depend on the future", "the past moves, LN, training"),
        Claim(
            "under BN, the past depends on the future in training",
            higher={"quantity": "the past moves, BN, training"},
            than=0.001,
        ),
        Claim(
            "and sequences of a batch depend on each other",
            higher={"quantity": "the other sequence moves, BN, training"},
            than=0.001,
        ),
        zero("in prediction, BN does neither", "the past moves, BN, prediction"),
        Claim(
            "LN over (L, D) leaks in prediction too",
            higher={"quantity": "the past moves, LN over L × D, prediction"},
            than=0.001,
        ),
        zero(
            "stronger form: BN cannot train on one sequence of 16 tokens",
            "BN trains on one sequence of 16 tokens",
        ),
        zero(
            "as written, “cannot process unbatched data where N=1”: BN cannot train on one token",
            "BN trains on one token",
        ),
        zero("for one token, every number of BN's formula is 0", "largest output of BN's formula for one token"),
    ],
)
training = Study(
    name="training",
    question="What does batch normalisation cost a language model?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64),
        task=StandardLibrary(length=32, batch_size=16, evaluation_batches=64),
        optimizer=AdamW(learning_rate=3e-3),
        training=Training(steps=200),
    ),
    axes=[
        Axis("model.norm_kind", NORMS),
        Axis("task.batch_size", {"16": 16, "1": 1}, name="batch"),
    ],
    seeds=range(20, 28),
    measure=with_batch_statistics,
    derive=discrepancy,
    claims=[
        Claim(
            "with 16 sequences a batch, LN beats BN",
            lower={"norm_kind": "LN"},
            than={"norm_kind": "BN"},
            by=0.02,
        ),
        Claim(
            "with one sequence a batch, the gap is larger",
            lower={"norm_kind": "LN"},
            than={"norm_kind": "BN"},
            where={"batch": "1"},
            more_than_where={"batch": "16"},
        ),
        Claim(
            "BN does worse by its running statistics than by those of a batch of one sequence",
            higher={"quantity": "prediction less training statistics, BN, batch 1"},
            than=0,
        ),
        Claim(
            "with 16 sequences a batch, the validation loss of LN over L × D is below that of LN",
            lower={"norm_kind": "LN over L × D"},
            than={"norm_kind": "LN"},
        ),
    ],
    caveats=[
        "Three layers, 200 steps, BN's momentum at 0.1: a mean over the whole training set may do better.",
        "Whether LN over L × D gains by its leak, or by what it keeps of a token's size, is not told apart.",
        "A batch of one sequence is validated on 64 windows, one of 16 on 1,024: losses compare within a batch size.",
    ],
)

case = Case(
    claim="Batch normalisation cannot process a batch of one, and needs other logic in prediction than in training.",
    source="What Happens in A Transformer Layer, appendix on layer and batch normalisation; Ba et al. 2016; "
    "Shen et al. 2020 (PowerNorm)",
    evidence=[facts, training],
)
