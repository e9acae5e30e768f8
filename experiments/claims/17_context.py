"""Is the embedding of a word the same in every context, and its representation not?

The notes on self-attention call E w non-contextual, and build representations that are functions of the whole sequence.
Their example of what self-attention lacks is two orders of one set of words, "the oven cooked the bread so" and "the
bread cooked the oven so", whose representations are the same without positions.

The sentences are tested literally, in untrained models (any weights will do, so 8 draws of them). The number is the
largest distance between the vectors of a word in the two sentences, relative to their length. The text says that it
is 0 for the embedding in every model, and 0 for the last layer of a bidirectional stack without positions. With
positions, a causal mask, or a recurrence, it is not. Other words around it are another case: "the bread broke the
oven so" changes the vectors in every model. The input of the first layer is the embedding only where no position is
added to it.

The study asks what a model can do with context: a table of keys and values, drawn for each sequence, is read and
queried (associative recall), so that the key alone does not determine the value. `window` is a number of one compiled
program: 1, every token attends to itself alone; 16, to all before it. Weights, operations and batches are the same.

Pilots (seeds 100, 101): reordered 2e-7 without order, 0.4 with positions, 0.7 with a causal mask, 1.4 recurrent; with
other words 0.3 to 0.6 without order. Recall: 0.0002 nats with all tokens, 2.0805 where a token attends to itself alone;
ln 8 is 2.0794.

Command: flaxformer claims 17
Cost: a probe and 16 runs in 1 program, about 75 CPU-seconds; quick, the probe alone: 5.
Expected: all claims supported.
"""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Elman,
    ModelConfig,
    NoPositions,
    Probe,
    Run,
    Sinusoidal,
    Study,
    Training,
    model,
    recurrent_model,
)
from flaxformer.claims import Case

WORDS = ("bread", "broke", "cooked", "oven", "so", "the")
SENTENCE, REORDERED, OTHER = (
    jnp.array([WORDS.index(word) for word in sentence.split()])
    for sentence in ("the oven cooked the bread so", "the bread cooked the oven so", "the bread broke the oven so")
)
SHAPE = {"vocabulary": len(WORDS), "layers": 2, "d_model": 32}
TWO_HEADS = Attention(heads=2)
MODELS = {
    "no order": ModelConfig(attention=TWO_HEADS, positions=NoPositions(), mask_pattern="bidirectional", **SHAPE),
    "position": ModelConfig(attention=TWO_HEADS, positions=Sinusoidal(), mask_pattern="bidirectional", **SHAPE),
    "causal mask": ModelConfig(attention=TWO_HEADS, positions=NoPositions(), **SHAPE),
    "recurrence": recurrent_model(Elman(), **SHAPE),
}


def moved(one: tuple, other: tuple) -> float:
    """Return the largest relative distance of a word's vector from the nearest of the same word in another sentence."""
    (words, vectors), (others, their) = one, other
    ways = [
        np.linalg.norm(their[others == word] - vector, axis=-1).min() / np.linalg.norm(vector)
        for word, vector in zip(words, vectors, strict=True)
        if word in others
    ]
    return float(max(ways))


def measure(seed: int) -> dict[str, float]:
    """Return the change of word vectors with another order or other words, before the first layer and after all."""
    numbers = {}
    for name, config in MODELS.items():
        params = model.init(jax.random.key(seed), config)
        sentences = jnp.stack([SENTENCE, REORDERED, OTHER])
        _, kept = jax.jit(model.apply_with_intermediates)(params, config, sentences)
        for stage, vectors in (("enter", kept.embedded), ("leave", kept.final)):
            first, second, third = zip(np.asarray(sentences), np.asarray(vectors), strict=True)
            numbers[f"{name}, reordered, as they {stage}"] = moved(first, second)
            numbers[f"{name}, in other context, as they {stage}"] = moved(first, third)
    return numbers


PROBE = Probe(
    name="oven",
    question="How far does a word's vector move with its order and its context?",
    measure=measure,
    seeds=range(20, 28),
    unit="of its length",
    claims=[
        Claim(
            "as written, “independent of context”: the embedding is the same with other words around it",
            equal={"quantity": "no order, in other context, as they enter"},
            to=0,
            within=1e-6,
        ),
        Claim(
            "as written, “a function of the entire sequence”: after attention, a word's vector depends on the others",
            higher={"quantity": "no order, in other context, as they leave"},
            than=0.01,
        ),
        Claim(
            "as written, “no built-in notion of order”: attention alone does not distinguish the two orders",
            equal={"quantity": "no order, reordered, as they leave"},
            to=0,
            within=1e-5,
        ),
        *(
            Claim(
                f"with the condition that there is a {name}: it does"
                if name != "recurrence"
                else "as written, “different representations”: a recurrent network distinguishes the two orders",
                higher={"quantity": f"{name}, reordered, as they leave"},
                than=0.01,
            )
            for name in ("position", "causal mask", "recurrence")
        ),
    ],
    caveats=["Untrained models: what could be told apart, not what a model makes of it."],
)


def meaning(steps: int) -> Study:
    """The same network with and without attention to other tokens."""
    return Study(
        name="meaning",
        question="Can a token that means something else in every sequence be understood without attention?",
        baseline=Run(
            model=ModelConfig(vocabulary=16, layers=2, d_model=64, attention=Attention(heads=2, window=16)),
            task=AssociativeRecall(pairs=4, queries=4, keys=8, values=8, batch_size=32),
            optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
            training=Training(steps=steps),
        ),
        axes=[Axis("model.attention.window", {"all": 16, "itself": 1}, name="sees")],
        metric="validation_loss",
        seeds=range(20, 28),
        claims=[
            Claim(
                "where keys change their meaning, attention to other tokens lowers the loss by above 0.1",
                lower={"sees": "all"},
                than={"sees": "itself"},
                by=0.1,
            ),
            Claim(
                "without it, the loss is that of the values' frequencies, ln 8 nats",
                equal={"sees": "itself"},
                to=float(np.log(8)),
                within=0.05,
            ),
        ],
        caveats=["A window of 1 leaves the values' map, so that attention is one more linear map of the token alone."],
    )


case = Case(
    claim="An embedding is the same in every context; what attention makes of it depends on the whole sequence.",
    source="Self-Attention and Transformers, notation and basics, and position representations",
    evidence=[PROBE, meaning(400)],
    quick=[PROBE],
)
