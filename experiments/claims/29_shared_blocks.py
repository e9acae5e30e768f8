"""Do the blocks of a stack need weights of their own, and does one feed-forward layer serve all tokens?

The notes on self-attention stack blocks that are parameterized independently of each other. The summary of "An
Introduction to Transformers" points out the opposite choice for the tokens: one MLP for all of them. Neither text says
what the choices bring, so the facts are tested as written and the rest as stronger forms.

- facts: what the words mean in the program, exact. With independent blocks, weights and gradients of two blocks are
  unrelated, and the number of block parameters is that of one block times the number of blocks. With shared blocks, the
  gradient is the sum of the gradients of equal independent blocks. The feed-forward layer has no weight per position:
  permuted tokens give permuted outputs, and a token alone gives the same as in a sequence.
- training: text, 4 independent blocks of width 32 against one shared block in four places (equal depth and equal
  operations), against a shared block of width 56 in four places (equal parameters within 1 %, three times the
  operations), and against a single block (the parameters of the shared block, a quarter of the operations). Each shape
  has the best of two learning rates.

Pilots (seeds 100 to 103, rates 0.003 and 0.01; 0.01 was better for all, and 0.02 took the place of 0.003): 2.62 nats
with independent blocks, 2.69 with a shared one in four places, 2.58 with a wider shared one, 2.57 with a single block.
So early in training, depth does not pay at this width.

Command: flaxformer claims 29
Cost: 64 runs in 4 programs and a probe, about 100 CPU-seconds; quick, the probe: 10.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import AdamW, Attention, Axis, Claim, ModelConfig, Probe, Run, StandardLibrary, Study, Training, model
from flaxformer.claims import Case
from flaxformer.components.component import Context
from flaxformer.core.params import count
from flaxformer.training.loss import loss

LAYERS, TOKENS = 4, 16
INDEPENDENT = ModelConfig(layers=LAYERS, d_model=32, attention=Attention(heads=2))
SHARED = INDEPENDENT.replace(distinct_blocks=1)
SHAPES = {
    "independent": INDEPENDENT,
    "shared": SHARED,
    "shared and wider": SHARED.replace(d_model=56),
    "single": INDEPENDENT.replace(layers=1),
}
RUN = Run(
    model=INDEPENDENT,
    task=StandardLibrary(length=24, batch_size=8, evaluation_batches=16),
    optimizer=AdamW(learning_rate=1e-2, warmup_steps=20),
    training=Training(steps=150),
)


def vectors(blocks: Any) -> list[np.ndarray]:
    """Return the matrices of each block as one vector per block."""
    leaves = [[np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(block)] for block in blocks]
    return [np.concatenate([leaf.reshape(-1) for leaf in own if leaf.ndim > 1]) for own in leaves]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def facts(seed: int) -> dict[str, float]:
    """Return counts of parameters, relations of weights and gradients of blocks, and the symmetry over tokens."""
    batch = RUN.task.load().batch(jax.random.key(seed), 0)

    @jax.jit
    def gradient(params: Any, run: Run) -> Any:
        return jax.grad(lambda params: loss(params, run, batch, None)[0])(params)

    own = model.init(jax.random.key(seed), INDEPENDENT)
    shared = model.init(jax.random.key(seed), SHARED)
    copied = own.replace(blocks=type(own.blocks)(shared.blocks[0] for _ in range(LAYERS)))
    weights, gradients = vectors(own.blocks), vectors(gradient(own, RUN).blocks)
    total = vectors(gradient(shared, RUN.replace(model=SHARED)).blocks)[0]
    parts = sum(vectors(gradient(copied, RUN).blocks))

    x = jax.random.normal(jax.random.key(seed + 1), (TOKENS, INDEPENDENT.d_model))
    order = np.random.default_rng(seed).permutation(TOKENS)
    places = jnp.arange(TOKENS)
    context = Context(query_positions=places, key_positions=places)

    def feed_forward(x: jax.Array) -> np.ndarray:
        return np.asarray(INDEPENDENT.feed_forward.apply(own.blocks[0].feed_forward, x, context))

    together = feed_forward(x)
    alone = np.concatenate([feed_forward(x[t : t + 1]) for t in range(TOKENS)])
    numbers = {name: count(model.specs(config)) for name, config in SHAPES.items()}
    return {
        "block parameters, independent / shared": sum(leaf.size for leaf in jax.tree.leaves(own.blocks))
        / sum(leaf.size for leaf in jax.tree.leaves(shared.blocks)),
        "parameters, shared and wider / independent": numbers["shared and wider"] / numbers["independent"],
        "cosine of the weights of two blocks": cosine(weights[0], weights[1]),
        "cosine of the gradients of two blocks": cosine(gradients[0], gradients[1]),
        "error of the sum of gradients": float(np.linalg.norm(total - parts) / np.linalg.norm(total)),
        "feed-forward layer, permuted": float(np.abs(feed_forward(x[order]) - together[order]).max()),
        "feed-forward layer, one token alone": float(np.abs(alone - together).max()),
    }


def best(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the loss at the best learning rate of a seed, by shape."""
    found: dict[str, float] = {}
    for row in rows.values():
        name = f"{row['blocks']}, best rate"
        found[name] = min(found.get(name, np.inf), row["validation_loss"])
    return found


def at_best(name: str) -> dict[str, str]:
    """Return the label of the loss of a shape at its best rate."""
    return {"quantity": f"{name}, best rate"}


def near(text: str, quantity: str, value: float, within: float) -> Claim:
    """Return a claim that an exact quantity has a value."""
    return Claim(text, equal={"quantity": quantity}, to=value, within=within)


FACTS = Probe(
    name="facts",
    question="Which weights do blocks and tokens share?",
    measure=facts,
    seeds=[0],
    exact=True,
    claims=[
        near(
            "as written, “independently parameterized”: four blocks have four times the parameters of one",
            "block parameters, independent / shared",
            LAYERS,
            1e-9,
        ),
        near(
            "as written, “independently parameterized”: the weights of two blocks are unrelated at the start",
            "cosine of the weights of two blocks",
            0,
            0.05,
        ),
        near(
            "with the condition that blocks are shared: the gradient is the sum over the places of the block",
            "error of the sum of gradients",
            0,
            1e-5,
        ),
        near(
            "as written, “used for all the transformed tokens”: permuted tokens give permuted outputs",
            "feed-forward layer, permuted",
            0,
            1e-5,
        ),
        near(
            "as written, “used for all the transformed tokens”: a token alone gives its output in a sequence",
            "feed-forward layer, one token alone",
            0,
            1e-5,
        ),
        near(
            "the wider shared block has as many parameters as the independent blocks, within 1 %",
            "parameters, shared and wider / independent",
            1,
            0.01,
        ),
    ],
)
TRAINED = Study(
    name="training",
    question="What do independent weights of the blocks bring, at equal depth and at equal parameters?",
    baseline=RUN,
    axes=[
        Axis("model", SHAPES, name="blocks"),
        Axis("optimizer.learning_rate", {"0.01": 1e-2, "0.02": 2e-2}, name="rate"),
    ],
    seeds=range(20, 28),
    derive=best,
    claims=[
        Claim(
            "stronger form: at equal depth, independent blocks reach a lower loss than one shared block, by above 0.02",
            lower=at_best("independent"),
            than=at_best("shared"),
            by=0.02,
        ),
        Claim(
            "stronger form: at equal parameters, they reach a lower loss than one wider shared block, by above 0.02",
            lower=at_best("independent"),
            than=at_best("shared and wider"),
            by=0.02,
        ),
        Claim(
            "stronger form: a shared block does better in four places than in one, by above 0.02",
            lower=at_best("shared"),
            than=at_best("single"),
            by=0.02,
        ),
    ],
    caveats=[
        "150 steps on small windows of text, far from the end of training, where more parameters may count for more.",
        "The wider shared block has larger embeddings too, and takes three times the operations.",
        "The best of two rates is chosen on the seed that it is reported on, for all shapes alike.",
    ],
)

case = Case(
    claim="Each block of the stack has weights of its own; within a block, one feed-forward layer serves all tokens.",
    source="Self-Attention and Transformers, Transformer Encoder; An Introduction to Transformers (summary), MLP layer",
    evidence=[FACTS, TRAINED],
    quick=[FACTS],
)
