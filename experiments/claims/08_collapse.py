"""Are stacked attention layers without a nonlinearity equal to a single layer?

The notes: two layers are Σ_k α*_ik V* x_k again, "just a linear combination of a linear transformation of the input",
hence the feed-forward network with a nonlinearity. The condition is that the attention weights are given: then
A* = A₂ A₁ (whose rows sum to one; the indices in the text are wrong) and V* = V₁ V₂, exactly. But A₁ and A₂ are
functions of the input, and the softmax in them is a nonlinearity, though a weak one.

Two exact properties are tested at initialisation: the product, and whether f(x + y) = f(x) + f(y). In training, the
task is y_n = |x_n|, for which the best affine function has a loss of Var|x| = 1 − 2/π, 0.363. Two layers without norms
(which are not linear) have no, a linear or a ReLU feed-forward layer; attention weights are fixed at random or computed
from the input.

Pilots (2 other seeds): fixed 0.363, 0.363, 0.000; computed 0.05 to 0.10, 0.338, 0.000. So computed attention is not a
linear map, and a linear layer, which adds only weights, made it harder to train.

Cost: 48 runs in 6 programs, about 150 s on one CPU core; the quick form (the algebra alone) about 10 s.
"""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    NO_NORM,
    AdamW,
    Attention,
    Axis,
    Batch,
    Claim,
    Dense,
    Embeddings,
    ModelConfig,
    NoHead,
    NoPositions,
    Probe,
    Run,
    ScaledIndex,
    Study,
    Training,
    replace_at,
)
from flaxformer.claims import Case
from flaxformer.model import apply_with_intermediates, init

LENGTH = 16
PATTERNS = {"fixed": LENGTH, "computed": None}


class Magnitude(ScaledIndex):
    """y_n = |x_n|."""

    def example(self, key: jax.Array) -> Batch:
        vectors = jax.random.normal(key, (self.length, self.width))
        return Batch(inputs=vectors, targets=jnp.abs(vectors), weights=jnp.ones(self.length))

    def references(self) -> dict[str, float]:
        """The least expected loss of an affine function of all tokens: the variance of |x|."""
        return {"affine": 1 - 2 / np.pi}


TASK = Magnitude(length=LENGTH, batch_size=32, evaluation_batches=64)
AFFINE = TASK.references()["affine"]
BARE = ModelConfig(
    layers=2,
    d_model=32,
    attention=Attention(heads=2, frozen_pattern=LENGTH),
    norm=NO_NORM,
    positions=NoPositions(),
    mask_pattern="bidirectional",
    inputs=TASK.inputs,
    head=TASK.head,
)
ATTENTION = BARE.replace(
    attention=Attention(heads=1, frozen_pattern=LENGTH, bias=False, out_bias=False),
    inputs=Embeddings(),
    head=NoHead(),
    feed_forward=None,
    attention_residual=False,
)


def measure(seed: int) -> dict[str, float]:
    """Return the distance of two layers from A₂ A₁ X V₁ V₂, with the weights of X; and of f(x + y) from f(x) + f(y)."""
    one, other = jax.random.normal(jax.random.key(seed), (2, LENGTH, ATTENTION.d_model))
    see, numbers = jax.jit(apply_with_intermediates), {}
    for name, pattern in PATTERNS.items():
        config = replace_at(ATTENTION, {"attention.frozen_pattern": pattern})
        params = init(jax.random.key(seed), config)
        said, kept = see(params, config, one)
        first, second = (did.attention.weights[0] for did in kept.blocks)
        v_1, v_2 = (block.attention.value[:, 0] @ block.attention.out[0] for block in params.blocks)
        together = see(params, config, one + other)[0]
        parts = said + see(params, config, other)[0]
        numbers[f"from the product, {name}"] = (
            jnp.abs(said - second @ first @ one @ v_1 @ v_2).max() / jnp.abs(said).max()
        )
        numbers[f"from additive, {name}"] = jnp.abs(together - parts).max() / jnp.abs(together).max()
        numbers[f"rows of A₂ A₁, {name}"] = (second @ first).sum(-1).mean()
    return numbers


def nothing(text: str, quantity: str) -> Claim:
    """Return a claim of zero up to rounding."""
    return Claim(text, equal={"quantity": quantity}, to=0, within=1e-4)


def affine(text: str, layer: str, pattern: str) -> Claim:
    """Return a claim that the loss is that of the best affine function."""
    return Claim(text, equal={"layer": layer}, to=AFFINE, where={"pattern": pattern}, within=0.01)


case = Case(
    claim="Stacked self-attention without a nonlinearity is a single linear combination of its inputs.",
    source="Self-Attention and Transformers, elementwise nonlinearity",
    evidence=[
        Probe(
            name="algebra",
            question="Are two layers of attention one linear map?",
            measure=measure,
            seeds=range(20, 28),
            claims=[
                nothing(
                    "as written, “a linear combination of a linear transformation”: given their patterns, two layers "
                    "are A₂ A₁ X V₁ V₂",
                    "from the product, computed",
                ),
                Claim(
                    "corrected indices: the rows of A₂ A₁ sum to 1",
                    equal={"quantity": "rows of A₂ A₁, computed"},
                    to=1,
                    within=1e-4,
                ),
                nothing("with the condition that patterns are fixed, f(x + y) = f(x) + f(y)", "from additive, fixed"),
                nothing("stronger form, computed patterns: f(x + y) = f(x) + f(y)", "from additive, computed"),
            ],
        ),
        Study(
            name="magnitude",
            question="Can two layers of attention learn |x| without a nonlinearity between them?",
            baseline=Run(
                model=BARE.replace(feed_forward=None),
                task=TASK,
                optimizer=AdamW(learning_rate=3e-3, warmup_steps=30),
                training=Training(steps=400, evaluate_every=100),
            ),
            axes=[
                Axis(
                    "model",
                    {
                        "none": BARE.replace(feed_forward=None),
                        "linear": BARE.replace(feed_forward=Dense(activation="linear")),
                        "relu": BARE,
                    },
                    name="layer",
                ),
                Axis("model.attention.frozen_pattern", PATTERNS, name="pattern"),
            ],
            seeds=range(20, 28),
            claims=[
                affine("fixed patterns, no layer between: at the affine floor, 0.363", "none", "fixed"),
                affine("fixed patterns, a linear layer between: at the affine floor", "linear", "fixed"),
                Claim(
                    "fixed patterns, a ReLU layer between: below a tenth of the floor",
                    lower={"layer": "relu"},
                    than=AFFINE / 10,
                    where={"pattern": "fixed"},
                ),
                affine(
                    "stronger form, computed patterns, no layer between: at the affine floor",
                    "none",
                    "computed",
                ),
                Claim(
                    "computed patterns are a nonlinearity: below the floor by above 0.1",
                    lower={"layer": "none"},
                    than=AFFINE - 0.1,
                    where={"pattern": "computed"},
                ),
                Claim(
                    "computed patterns with a ReLU layer: lower than without it by above 0.02",
                    lower={"layer": "relu"},
                    than={"layer": "none"},
                    where={"pattern": "computed"},
                    by=0.02,
                ),
            ],
            caveats=[
                "One made-up task and one budget: computed attention still improves after its 400 steps, and the "
                "disadvantage of the linear layer may be the learning rate's.",
            ],
        ),
    ],
)
