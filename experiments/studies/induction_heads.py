"""Which heads make induction work, when do they appear, and what happens to the loss without them?"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from flaxformer.config import Attention, LearnedPositions, ModelConfig
from flaxformer.interpret import (
    attention_maps,
    combine,
    head_importance,
    lens_scores,
    mean_activations,
    named,
    patch,
    prefix_matching,
    previous_token,
    scores,
)
from flaxformer.model import activations_at
from flaxformer.study import Claim, Study
from flaxformer.tasks import Induction
from flaxformer.training import AdamW, Run, Training

READS = ("query", "key", "value")
FIRST, SECOND = "blocks/0/attention", "blocks/1/attention"
HEADS = 4


def measure(params, run):
    """Scores and importance of every head, and the increase of the loss by interventions, in nats."""
    batches = run.task.load().evaluation()
    tokens = batches.inputs.reshape(-1, batches.inputs.shape[-1])
    is_scored = jnp.arange(tokens.shape[-1])[None] == tokens.shape[-1] - 1
    weights = attention_maps(params, run.model, tokens)
    found = named("prefix_matching", {path: prefix_matching(a, tokens, is_scored) for path, a in weights.items()})
    found |= named("previous_token", {path: previous_token(a, tokens) for path, a in weights.items()})
    found |= named("head_importance", head_importance(params, run, batches))
    found |= named("logit_lens", lens_scores(params, run, batches))
    average = mean_activations(params, run, batches, "blocks/*/attention/heads")
    loss = scores(params, run, batches)["loss"]

    def without_layer(layer):
        edits = [patch({f"{place}/heads": average[f"{place}/heads"]}, heads=jnp.full(HEADS, layer == number))
                 for number, place in enumerate((FIRST, SECOND))]  # fmt: skip
        return scores(params, run, batches, combine(*edits))["loss"] - loss

    def hidden_from(number):
        """Let the second layer compute its queries, keys or values as if the heads of the first were removed."""

        def edits(batch):
            removed = patch({f"{FIRST}/heads": average[f"{FIRST}/heads"]})
            points = [f"{SECOND}/{name}" for name in READS]
            values = activations_at(params, run.model, batch.inputs, points, edit=removed)
            chosen = {path: jnp.full(HEADS, number == READS.index(path.rpartition("/")[2])) for path in points}
            return combine(*(patch({path: values[path]}, heads=chosen[path]) for path in points))

        return scores(params, run, batches, edits)["loss"] - loss

    layers = jax.lax.map(without_layer, jnp.arange(2))
    reads = jax.lax.map(hidden_from, jnp.arange(len(READS)))
    found |= {"without/heads of layer 1": layers[0], "without/heads of layer 2": layers[1]}
    return found | {f"without/layer 1 in the {name} of layer 2": reads[n] for n, name in enumerate(READS)}


def half_way(steps, values):
    """First step at which a curve has covered half of its way from the first to the last value, interpolated."""
    part = [(value - values[0]) / (values[-1] - values[0]) for value in values]
    after = next(i for i, value in enumerate(part) if value >= 0.5)
    left = (0.5 - part[after - 1]) / (part[after] - part[after - 1])
    return steps[after - 1] + left * (steps[after] - steps[after - 1])


def best(row, score, place):
    """Curve of the largest score over the heads of a layer."""
    curves = [row[f"{score}/{place}/weights/{head}_curve"] for head in range(HEADS)]
    return [max(values) for values in zip(*curves, strict=True)]


def derive(rows: Mapping):
    """Scores of the best heads at the end, increases of the loss, and the steps at which heads and loss change."""
    row = rows["baseline"]
    steps, found = row["evaluated_at"], {}
    for score in ("prefix_matching", "previous_token"):
        for layer, place in enumerate((FIRST, SECOND), 1):
            found[f"best {score} of layer {layer}"] = best(row, score, place)[-1]
    found |= {f"nats {name}": row[name] for name in row if name.startswith("without/")}
    importance = [row[f"head_importance/{SECOND}/heads/{head}"] for head in range(HEADS)]
    matching = [row[f"prefix_matching/{SECOND}/weights/{head}"] for head in range(HEADS)]
    found["nats without the best induction head"] = importance[matching.index(max(matching))]
    found["step of induction"] = half_way(steps, best(row, "prefix_matching", SECOND))
    found["step of previous token"] = half_way(steps, best(row, "previous_token", FIRST))
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
    seeds=range(100, 104),
    measure=measure,
    derive=derive,
    claims=[Claim("x", higher={"quantity": "step of the loss"}, than=0.0)],
    caveats=["x"],
)
