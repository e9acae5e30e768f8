"""Which heads make induction work, when do they appear, and what happens to the loss without them?

A model of two layers of attention alone learns to predict B at the end of … A B … A. Olsson et al. 2022 describe a
circuit of two heads: a previous-token head in the first layer writes to each token what stood before it, and an
induction head in the second layer attends to the token whose predecessor is A, which it finds by its keys. The claims
test the places of these heads, the way in which the second layer reads the first, what removing heads costs, and when
they appear.
Published: an induction head finds its token by keys that a previous-token head of the layer below wrote (Olsson et
    al. 2022, arXiv 2209.11895).
Command: flaxformer run experiments/studies/induction_heads.py
Cost: 8 runs in 1 compiled program, about 2 minutes on 2 idle CPU cores.
Expected: all claims supported. At 4 other seeds (100 to 103), which suggested the claims and their margins, hiding the
first layer from the keys of the second raised the loss by 6.1 nats, and hiding it from queries or values by less than
0.01; removing the best induction head alone raised it by 0.015, the best previous-token head by 0.16. The three kinds
of curves were half-way within 30 steps of each other.
Result: all ten claims supported at seeds 0 to 7. Hidden from the keys, +6.03 nats (5.87 to 6.19); from queries and
values, within 0.005 of 0. Without the best induction head, +0.022 nats (0.012 to 0.032), since the other three do the
same; without all four, +3.86 (3.71 to 4.01). Induction heads are half-way at step 313 (297 to 330).
docs/interpretability.md has the table.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import AdamW, Attention, Batch, Claim, Induction, LearnedPositions, ModelConfig, Run, Study, Training
from flaxformer.core.points import Edit
from flaxformer.interpret import (
    attention_maps,
    combine,
    head_importance,
    lens_scores,
    mean_activations,
    name_scalars,
    patch,
    prefix_matching,
    previous_token,
    scores,
)
from flaxformer.model import Transformer, activations_at
from flaxformer.store.rows import Row

READS = ("query", "key", "value")
FIRST, SECOND = "blocks/0/attention", "blocks/1/attention"
HEADS = 4
LAYERS_REMOVED = ("nats without the heads of the first layer", "nats without the heads of the second layer")
HIDDEN = tuple(f"nats with the first layer hidden from the {name}" for name in ("queries", "keys", "values"))
INCREASES = (*LAYERS_REMOVED, *HIDDEN)
"""Increases of the loss, in nats."""
PREFIX = tuple(f"best prefix-matching score of the {layer} layer" for layer in ("first", "second"))
PREVIOUS = tuple(f"best previous-token score of the {layer} layer" for layer in ("first", "second"))


def measure(params: Transformer, run: Run) -> dict[str, Array]:
    """Scores and importance of every head, and the increase of the loss by interventions, in nats."""
    batches = run.task.load().evaluation()
    tokens = batches.inputs.reshape(-1, batches.inputs.shape[-1])
    is_scored = jnp.arange(tokens.shape[-1])[None] == tokens.shape[-1] - 1
    weights = attention_maps(params, run.model, tokens)
    found = name_scalars(
        "prefix_matching", {path: prefix_matching(a, tokens, is_scored) for path, a in weights.items()}
    )
    found |= name_scalars("previous_token", {path: previous_token(a, tokens) for path, a in weights.items()})
    found |= name_scalars("head_importance", head_importance(params, run, batches))
    found |= name_scalars("logit_lens", lens_scores(params, run, batches))
    average = mean_activations(params, run, batches, "blocks/*/attention/heads")
    loss = scores(params, run, batches)["loss"]

    def without_layer(layer: Array) -> Array:
        edits = [patch({f"{place}/heads": average[f"{place}/heads"]}, heads=jnp.full(HEADS, layer == number))
                 for number, place in enumerate((FIRST, SECOND))]  # fmt: skip
        return scores(params, run, batches, combine(*edits))["loss"] - loss

    def hidden_from(number: Array) -> Array:
        """Let the second layer compute its queries, keys or values as if the heads of the first were removed."""

        def edits(batch: Batch) -> dict[str, Edit]:
            removed = patch({f"{FIRST}/heads": average[f"{FIRST}/heads"]})
            points = [f"{SECOND}/{name}" for name in READS]
            values = activations_at(params, run.model, batch.inputs, points, edit=removed)
            chosen = {path: jnp.full(HEADS, number == READS.index(path.rpartition("/")[2])) for path in points}
            return combine(*(patch({path: values[path]}, heads=chosen[path]) for path in points))

        return scores(params, run, batches, edits)["loss"] - loss

    layers = jax.lax.map(without_layer, jnp.arange(2))
    reads = jax.lax.map(hidden_from, jnp.arange(len(READS)))
    return found | dict(zip(INCREASES, [*layers, *reads], strict=True))


def half_way(steps: Sequence[int], values: Sequence[float]) -> float:
    """First step at which a curve has covered half of its way from the first to the last value, interpolated."""
    part = [(value - values[0]) / (values[-1] - values[0]) for value in values]
    after = next(i for i, value in enumerate(part) if value >= 0.5)
    left = (0.5 - part[after - 1]) / (part[after] - part[after - 1])
    return steps[after - 1] + left * (steps[after] - steps[after - 1])


def best(row: Mapping[str, list[float]], score: str, place: str) -> list[float]:
    """Curve of the largest score over the heads of a layer."""
    curves = [row[f"{score}/{place}/weights/{head}_curve"] for head in range(HEADS)]
    return [max(values) for values in zip(*curves, strict=True)]


def derive(rows: Mapping[str, Row]) -> dict[str, float]:
    """Scores of the best heads at the end, increases of the loss, and the steps at which heads and loss change."""
    row = rows["baseline"]
    steps = row["evaluated_at"]
    found: dict[str, float] = {}
    for names, score in ((PREFIX, "prefix_matching"), (PREVIOUS, "previous_token")):
        for name, place in zip(names, (FIRST, SECOND), strict=True):
            found[name] = best(row, score, place)[-1]
    found |= {name: row[name] for name in INCREASES}
    for name, score, place in (
        ("best induction head", "prefix_matching", SECOND),
        ("best previous-token head", "previous_token", FIRST),
    ):
        scores_of = [row[f"{score}/{place}/weights/{head}"] for head in range(HEADS)]
        importance = [row[f"head_importance/{place}/heads/{head}"] for head in range(HEADS)]
        removed = importance.pop(scores_of.index(max(scores_of)))
        found[f"nats without the {name}"] = removed
        found[f"nats without another head than the {name}, of its layer"] = sum(importance) / len(importance)
    found["step of the induction heads"] = half_way(steps, best(row, "prefix_matching", SECOND))
    found["step of the previous-token heads"] = half_way(steps, best(row, "previous_token", FIRST))
    found["step of the loss"] = half_way(steps, row["validation_loss_curve"])
    return found


study = Study(
    name="induction_heads",
    question="Which heads make induction work, when do they appear, and what happens to the loss without them?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=16,
            layers=2,
            d_model=32,
            attention=Attention(heads=HEADS),
            feed_forward=None,
            positions=LearnedPositions(max_length=16),
        ),
        task=Induction(symbols=16, length=16, batch_size=64, evaluation_batches=4),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=50),
        training=Training(steps=1000, evaluate_every=50),
    ),
    seeds=range(8),
    keep="final",
    measure=measure,
    derive=derive,
    claims=[
        Claim(
            "hiding the first layer from the keys of the second costs more than hiding it from the queries, by 2 nats",
            higher={"quantity": HIDDEN[1]},
            than={"quantity": HIDDEN[0]},
            by=2.0,
            answers={
                "supported": "The second layer finds the token to copy by its keys, which read the first layer.",
                "refuted": "The second layer does not depend on the first through its keys.",
                "inconclusive": "The study cannot tell how the second layer reads the first.",
            },
        ),
        Claim(
            "hiding the first layer from the queries of the second changes the loss by less than 0.1 nats",
            equal={"quantity": HIDDEN[0]}, to=0.0, within=0.1,
        ),
        Claim(
            "hiding the first layer from the values of the second changes the loss by less than 0.1 nats",
            equal={"quantity": HIDDEN[2]}, to=0.0, within=0.1,
        ),
        Claim(
            "induction heads are in the second layer: its best prefix-matching score is higher by more than 0.5",
            higher={"quantity": PREFIX[1]}, than={"quantity": PREFIX[0]}, by=0.5,
        ),
        Claim(
            "previous-token heads are in the first layer: its best score is higher by more than 0.2",
            higher={"quantity": PREVIOUS[0]}, than={"quantity": PREVIOUS[1]}, by=0.2,
        ),
        Claim(
            "without all heads of the second layer, the loss rises by more than 2 nats",
            higher={"quantity": LAYERS_REMOVED[1]}, than=2.0,
        ),
        Claim(
            "without its best induction head alone, the loss rises by less than 0.2 nats",
            lower={"quantity": "nats without the best induction head"}, than=0.2,
        ),
        Claim(
            "the loss rises more without the best previous-token head than without the best induction head",
            higher={"quantity": "nats without the best previous-token head"},
            than={"quantity": "nats without the best induction head"},
        ),
        Claim(
            "previous-token heads and induction heads appear within 50 steps of each other",
            equal={"quantity": "step of the previous-token heads"},
            to={"quantity": "step of the induction heads"},
            within=50,
        ),
        Claim(
            "the loss falls within 50 steps of the appearance of the induction heads",
            equal={"quantity": "step of the loss"}, to={"quantity": "step of the induction heads"}, within=50,
        ),
    ],
    caveats=[
        "One small model, one task, one learning rate and one number of heads. With one head per layer, or with more "
        "sequences to tell apart, heads may be less redundant.",
        "A head is removed by replacing its values with their mean over the evaluation set; with zeros or with values "
        "of other sequences, increases of the loss would differ.",
        "A step of appearance is where the largest score over the heads of a layer, or the loss, has covered half of "
        "its way from the first to the last evaluation, interpolated between evaluations 50 steps apart.",
        "The best head is chosen by its score on the same 256 evaluation sequences on which its removal is measured.",
    ],
)  # fmt: skip
