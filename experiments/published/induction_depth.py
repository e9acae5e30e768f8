"""Do two layers learn in context, with a bump in the loss, where one layer does not?

Olsson et al. 2022, "In-context learning and induction heads" (arXiv 2209.11895): induction heads develop at the point
where the ability to learn in context rises abruptly, visible as a bump of the training loss; a head that finds an
earlier copy of the current token needs a layer below it, so models of one layer have neither. Their in-context score is
the loss of the 500th token of a text minus that of the 50th.

Here, a sequence repeats a segment of 5 to 12 symbols of unequal frequencies. The score is the loss (nats) where the
period determines the target, minus that of the first five targets, which nothing determines. A bump is the largest
height of the validation loss over training above its lower convex hull: 0 for a curve that falls ever more slowly.

Published: with two or more layers, induction heads, in-context learning and a bump appear together; with one layer,
    none of them (abstract, checked at the source; argument 1, where one layer is compared, not checked there).
Differences: a synthetic text of 24 symbols and 32 tokens rather than natural language of 8,192 tokens; models of width
    32 with two heads, attention alone; 1,000 steps; the bump is that of the validation loss.
Pilot: seeds 100 and 101, in this setting, the first that was tried. Score -1.32 with one layer and -2.59 with two; bump
    0.018 and 0.21 nats; best prefix-matching score 0.27 and 0.86; half-way of the score and of prefix matching 4 steps
    apart at most. One layer learns in context too, by what occurred before, so the first claim is about a difference.
    The margins are about half of these differences.
Command: flaxformer run experiments/published/induction_depth.py
Cost: 12 runs in 2 compiled programs, about 2 minutes on 2 CPU cores.
Result: all five claims supported at seeds 0 to 5. The score is -1.29 with one layer and -2.59 with two; the bump is
    0.021 nats (0.010 to 0.042) with one layer and 0.236 (0.217 to 0.252) with two; in two layers, the score is half-way
    6 steps before the prefix-matching score (-12 to +3, 90 %). The bound of one layer's bump, 0.05, is near its
    interval.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Batch,
    Claim,
    LearnedPositions,
    ModelConfig,
    Run,
    Study,
    SyntheticTask,
    Training,
    next_token,
    static,
)
from flaxformer.interpret import attention_maps, prefix_matching
from flaxformer.model import Transformer, apply
from flaxformer.nn.losses import cross_entropy
from flaxformer.store.rows import Row

SYMBOLS, LENGTH, SHORTEST, LONGEST = 24, 32, 5, 12
EARLY, LATE = slice(0, SHORTEST), slice(2 * LONGEST - 1, None)
"""Targets that no text before them determines, and targets that the period before them does, whatever its length."""
HEADS = 2


class Periodic(SyntheticTask):
    """Next token of a segment that is repeated until the sequence is full; its symbols have unequal frequencies.

    The period is uniform from `shortest` to `longest`, so that no fixed distance finds the last copy of a token.
    Symbol s of a segment has a frequency in proportion to 1 / (s + 1).
    """

    symbols: int = static(SYMBOLS, at_least=2)
    length: int = static(LENGTH, at_least=2)
    shortest: int = static(SHORTEST, at_least=1)
    longest: int = static(LONGEST, at_least=1)

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    def example(self, key: Array) -> Batch:
        for_period, for_segment = jax.random.split(key)
        period = jax.random.randint(for_period, (), self.shortest, self.longest + 1)
        logits = -jnp.log(jnp.arange(1.0, self.symbols + 1))
        segment = jax.random.categorical(for_segment, logits, shape=(self.longest,))
        return next_token(segment[jnp.arange(self.length + 1) % period], jnp.ones(self.length + 1, bool))


def measure(params: Transformer, run: Run) -> dict[str, Array]:
    """In-context learning score (nats), and the best prefix-matching score of any head."""
    batches = run.task.load().evaluation()
    tokens, targets = (a.reshape(-1, a.shape[-1]) for a in (batches.inputs, batches.targets))
    logits = apply(params, run.model, tokens)

    def loss(places: slice) -> Array:
        total, count = cross_entropy(logits[:, places], targets[:, places])
        return total / count

    scored = jnp.broadcast_to(jnp.arange(LENGTH) >= 2 * LONGEST - 1, tokens.shape)
    maps = attention_maps(params, run.model, tokens).values()
    best = jnp.stack([prefix_matching(weights, tokens, scored).max() for weights in maps]).max()
    return {"in-context score": loss(LATE) - loss(EARLY), "prefix matching": best}


def height_of_bump(steps: Sequence[int], losses: Sequence[float]) -> float:
    """Return the largest height of a curve above its lower convex hull: 0 for a curve that is convex throughout."""
    hull: list[tuple[float, float]] = []
    for x, y in zip(steps, losses, strict=True):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) >= (y - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    corners = np.array(hull)
    return float((np.array(losses) - np.interp(steps, corners[:, 0], corners[:, 1])).max())


def half_way(steps: Sequence[int], values: Sequence[float]) -> float:
    """First step at which a curve has covered half of its way from the first to the last value, interpolated."""
    part = [(value - values[0]) / (values[-1] - values[0]) for value in values]
    after = next(i for i, value in enumerate(part) if value >= 0.5)
    left = (0.5 - part[after - 1]) / (part[after] - part[after - 1])
    return steps[after - 1] + left * (steps[after] - steps[after - 1])


def derive(rows: Mapping[str, Row]) -> dict[str, float]:
    """Bump of the loss and best head of each depth, and the steps at which the scores of two layers are half-way."""
    bumps = {
        f"bump of {label}": height_of_bump(row["evaluated_at"], row["validation_loss_curve"])
        for label, row in ((label, rows[f"layers={label}"]) for label in ("1", "2"))
    }
    two = rows["layers=2"]
    matching = {f"prefix matching of {label}": rows[f"layers={label}"]["prefix matching"] for label in ("1", "2")}
    return (
        bumps
        | matching
        | {
            "step of in-context learning": half_way(two["evaluated_at"], two["in-context score_curve"]),
            "step of prefix matching": half_way(two["evaluated_at"], two["prefix matching_curve"]),
        }
    )


study = Study(
    name="induction_depth",
    question="Do two layers learn in context, with a bump in the loss, where one does not?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=SYMBOLS,
            layers=1,
            d_model=32,
            attention=Attention(heads=HEADS),
            feed_forward=None,
            positions=LearnedPositions(max_length=LENGTH),
        ),
        task=Periodic(batch_size=32, evaluation_batches=8),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=50),
        training=Training(steps=1000, evaluate_every=25),
    ),
    axes=[Axis("model.layers", {"1": 1, "2": 2})],
    seeds=range(6),
    metric="in-context score",
    metric_unit="nats",
    goal="lower",
    measure=measure,
    derive=derive,
    claims=[
        Claim(
            "two layers learn more in context than one: a score that is lower by more than 0.6 nats",
            lower={"layers": "2"},
            than={"layers": "1"},
            by=0.6,
        ),
        Claim("the loss of two layers has a bump of more than 0.1 nats", higher={"quantity": "bump of 2"}, than=0.1),
        Claim("the loss of one layer has none: less than 0.05 nats", lower={"quantity": "bump of 1"}, than=0.05),
        Claim(
            "two layers have an induction head, one has none: the best prefix-matching scores differ by more than 0.3",
            higher={"quantity": "prefix matching of 2"},
            than={"quantity": "prefix matching of 1"},
            by=0.3,
        ),
        Claim(
            "in two layers, in-context learning and induction heads are half-way within 25 steps of each other",
            equal={"quantity": "step of in-context learning"},
            to={"quantity": "step of prefix matching"},
            within=25,
        ),
    ],
    caveats=[
        "A synthetic text, in which hardly anything but repetition can be learned; one learning rate and one width.",
        "A head counts as an induction head by its prefix-matching score alone; what removing it costs is measured in "
        "experiments/studies/induction_heads.py.",
    ],
)
