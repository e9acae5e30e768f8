"""Do heads come to attend to different things?

The texts use several heads because each is to capture a relation of its own ("An Introduction to Transformers"), or
because one softmax is best at picking one value ("Self-Attention and Transformers"). In trained models this would have
two signs, both measured on attention weights over a fixed batch, before and after training:

- entropy: the entropy of each query, as a share of the maximum for its number of keys, falls: heads pick;
- diversity: 1 − the mean cosine between the weights of two heads of a layer rises: they pick different keys.

In one reading, diversity rises. But it depends on the first sign: sharp weights differ by chance alone, flat ones
cannot. In a stronger one, it is compared with the diversity of the same heads if each of their queries had the same
weights on its keys in a random order ("shuffled"): heads specialise if they differ by more than that; if by less,
they attend to common keys.

Two tasks in one study: associative recall, which takes two steps, and so different layers; and the text of the standard
library, 600 steps of each. Two layers of four heads.

Pilots (seeds 100 and 101): entropy fell from 0.88 to 0.59 (recall) and from 0.91 to 0.57 (text); diversity rose by 0.15
and 0.04, and by 0.20 and 0.21; shuffled it would be 0.16 to 0.29 more: heads agree more than their sharpness explains.

Command: flaxformer claims 20
Cost: 16 runs in 2 programs, about 95 CPU-seconds; quick, 200 steps of recall: 35.
Expected: diversity rises; but by less than sharpness alone would raise it.
"""

import jax
import jax.numpy as jnp

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case

TASKS = {
    "recall": AssociativeRecall(pairs=4, queries=4, keys=8, values=8, batch_size=32),
    "text": StandardLibrary(length=32, batch_size=16),
}


def entropy(maps: jax.Array) -> jax.Array:
    """Return the mean of −Σ a ln a / ln(number of keys) over queries with two keys or more; maps [..., T, T]."""
    seen = jnp.arange(2, maps.shape[-1] + 1)
    return (jax.scipy.special.entr(maps).sum(-1)[..., 1:] @ (1 / jnp.log(seen))).mean() / seen.size


def diversity(maps: jax.Array) -> jax.Array:
    """Return 1 − the mean cosine between the maps of two heads of a layer; maps [layers, batch, heads, T, T]."""
    flat = maps.reshape(*maps.shape[:-2], -1)
    flat = flat / jnp.linalg.norm(flat, axis=-1, keepdims=True)
    heads = maps.shape[2]
    return (1 - jnp.einsum("...ni,...mi->...nm", flat, flat)).sum((-2, -1)).mean() / (heads * (heads - 1))


def shuffled(maps: jax.Array) -> jax.Array:
    """Return the weights of every query in a random order over its allowed keys."""
    places = jax.random.uniform(jax.random.key(0), maps.shape)
    seen = jnp.broadcast_to(jnp.tri(maps.shape[-1], dtype=bool), maps.shape)
    return jnp.take_along_axis(maps, jnp.argsort(jnp.where(seen, places, 2.0), axis=-1), axis=-1)


def measure(params, run: Run) -> dict:
    """Return the measures of the maps of all layers on the first batch of the evaluation set."""
    inputs = run.task.load().evaluation().inputs[0]
    _, kept = model.apply_with_intermediates(params, run.model, inputs)
    maps = jnp.stack([block.attention.weights for block in kept.blocks])
    return {"entropy": entropy(maps), "diversity": diversity(maps), "shuffled": diversity(shuffled(maps))}


def changes(rows) -> dict[str, float]:
    """Return the changes by training, and their distance from chance."""
    numbers = {}
    for arm, row in rows.items():
        task = arm.removeprefix("task=")
        for what in ("entropy", "diversity"):
            numbers[f"{what}, {task}: change"] = row[what] - row[f"initial_{what}"]
        numbers[f"diversity, {task}: beyond chance"] = row["diversity"] - row["shuffled"]
    return numbers


def study(tasks: dict, steps: int, seeds: range) -> Study:
    """Return a study of the tasks, before training and after."""
    return Study(
        name="heads",
        question="Do heads pick, and do they pick different keys?",
        baseline=Run(
            model=ModelConfig(layers=2, d_model=64, attention=Attention(heads=4)),
            task=TASKS["recall"],
            optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
            training=Training(steps=steps),
        ),
        axes=[Axis("task", tasks)],
        measure=measure,
        metric="entropy",
        metric_unit="of the maximum",
        derive=changes,
        seeds=seeds,
        claims=[
            *(
                Claim(
                    f"{task}: training makes heads pick, their entropy falls by a tenth of the maximum",
                    lower={"quantity": f"entropy, {task}: change"},
                    than=-0.1,
                )
                for task in tasks
            ),
            *(
                Claim(
                    f"a reading of “a different type of relationship”, {task}: training raises the diversity of heads",
                    higher={"quantity": f"diversity, {task}: change"},
                    than=0,
                )
                for task in tasks
            ),
            *(
                Claim(
                    f"stronger form, {task}: they differ by more than their sharpness alone would make them",
                    higher={"quantity": f"diversity, {task}: beyond chance"},
                    than=0,
                )
                for task in tasks
            ),
        ],
        caveats=[
            "Two small models and 600 steps; what a map looks at is not what a head does with it.",
            "Heads of one layer that attend to the same keys may still take different values from them.",
        ],
    )


case = Case(
    claim="Each head captures a different type of relationship.",
    source="An Introduction to Transformers, the multi-head self-attention layer; Self-Attention and Transformers, "
    "multi-head self-attention; Voita et al. 2019",
    evidence=[study(TASKS, 600, range(20, 28))],
    quick=[study({"recall": TASKS["recall"]}, 200, range(4))],
)
