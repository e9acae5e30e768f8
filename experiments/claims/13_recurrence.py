"""Why did attention replace recurrence: sequential steps, and distant tokens that hardly interact?

The notes on self-attention name two faults of recurrent networks: h_t needs h_{t−1}, so little can be done in parallel;
and a token acts on a distant one only through all tokens between. The walk-through adds that the cost gets worse as the
input gets longer. Four questions:

- steps: iterations of the loops in the compiled gradient: as many as tokens, and none in attention. Exact.
- time: in one reading, the time of the recurrent network grows faster with length. With a fixed number of tokens per
  batch, on a CPU, which has no idle lanes, the time of attention grows faster instead, because it computes T²
  products. Time is measured in one process, all programs in turn, least of 5 rounds, as the slope of log time against
  log length from 64 to 1024 tokens.
- reach: |∂h_T/∂x_1| / |∂h_T/∂x_T| of untrained models, T = 4, 16, 64, and its factor per token.
- recall: repeat the first of T symbols after the last, T = 4, 8, 32. A Transformer of one layer and one head, and
  recurrent networks of the same width, 300 steps each. The condition is that gates must be trained before they help.
  The task is a subclass with another `answer`.

Pilots (seeds from 100): slopes of time 0.9 to 1.2 for attention, 0.4 for Elman and LSTM (3 seeds, a busy machine; from
32 to 512 tokens the noise hid the difference). The gradient fell by 12 to 14 decades over 63 tokens in every recurrent
cell, gated or not, and by 2 in attention (5 seeds). Accuracy at T = 4, 8, 32: attention 1, 1, 1; Elman 1, 0.66, chance;
GRU 1, 1, chance; LSTM 1, 0.88, chance (2 seeds); at T = 16 all recurrent cells were at chance.

Command: flaxformer claims 13
Cost: 96 runs in 12 programs and 3 probes, about 220 CPU-seconds; quick, the probes of steps and reach: 15.
Expected: all but time, which is refuted on a CPU.
"""

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    GRU,
    LSTM,
    AdamW,
    Attention,
    Axis,
    Claim,
    Constant,
    Copy,
    Elman,
    Embeddings,
    ModelConfig,
    NoHead,
    Probe,
    Run,
    Study,
    Training,
    model,
    recurrent_model,
)
from flaxformer.claims import Case

CELLS = {"elman": Elman(), "gru": GRU(), "lstm": LSTM()}
SHAPE = {"vocabulary": 9, "d_model": 32, "layers": 1}
MODELS = {"attention": ModelConfig(attention=Attention(heads=1), **SHAPE)} | {
    name: recurrent_model(cell, **SHAPE) for name, cell in CELLS.items()
}


@functools.cache
def program(name: str, length: int, batch: int, of: str = "loss"):
    """A compiled function of (weights, vectors [batch, T, D]), and its config.

    of: "loss", the gradient of a mean over all outputs in the weights; "reach", the last output's Jacobian.
    """
    config = MODELS[name].replace(inputs=Embeddings(), head=NoHead())

    def loss(params, x):
        return jnp.square(model.apply(params, config, x)).mean()

    def reach(params, x):
        jacobian = jax.jacrev(lambda x: model.apply(params, config, x)[0, -1])(x)[:, 0]
        return jnp.sqrt(jnp.square(jacobian).sum((0, 2)))

    params = jax.eval_shape(lambda: model.init(jax.random.key(0), config))
    x = jax.ShapeDtypeStruct((batch, length, config.d_model), jnp.float32)
    return jax.jit({"loss": jax.grad(loss), "reach": reach}[of]).lower(params, x).compile(), config


def drawn(config, shape: tuple[int, ...], seed: int):
    """Return weights and normal vectors."""
    return model.init(jax.random.key(seed), config), jax.random.normal(jax.random.key(seed + 1), shape)


def slope(x, y) -> float:
    """Return the slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def steps(seed: int) -> dict[str, float]:
    """Return the iterations of all loops of the gradient, forwards and backwards, per token."""
    numbers = {}
    for name in MODELS:
        for length in (16, 64):
            trips = re.findall(r'known_trip_count":\{"n":"(\d+)"', program(name, length, 2)[0].as_text())
            numbers[f"{name}, {length} tokens"] = sum(map(int, trips)) / length
    return numbers


def times(seed: int, lengths: tuple[int, ...] = (64, 256, 1024), tokens: int = 2048) -> dict[str, float]:
    """Return the growth of the time of a gradient with length, at a fixed number of tokens."""
    names = ("attention", "elman", "lstm")
    least = dict.fromkeys(((name, length) for name in names for length in lengths), np.inf)
    for _ in range(5):
        for name, length in least:
            compiled, config = program(name, length, tokens // length)
            arguments = drawn(config, (tokens // length, length, config.d_model), seed)
            jax.block_until_ready(arguments)
            began = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            least[name, length] = min(least[name, length], time.perf_counter() - began)
    slopes = {name: slope(lengths, [least[name, length] for length in lengths]) for name in names}
    return slopes | {f"{cell} less attention": slopes[cell] - slopes["attention"] for cell in names[1:]}


def reach(seed: int, lengths: tuple[int, ...] = (4, 16, 64)) -> dict[str, float]:
    """Return the fraction of a gradient that is left after a distance of one step, and of 63."""
    numbers = {}
    for name in MODELS:
        ratios = []
        for length in lengths:
            compiled, config = program(name, length, 1, "reach")
            norms = compiled(*drawn(config, (1, length, config.d_model), seed))
            ratios.append(float(norms[0] / norms[-1]))
        numbers[f"{name}, factor per token"] = float(np.exp(np.polyfit(lengths, np.log(ratios), 1)[0]))
        numbers[f"{name}, decades in 64 tokens"] = float(np.log10(ratios[-1]))
    return numbers


class Recall(Copy):
    """Repeat the first symbol after all others."""

    sequence_length = property(lambda self: self.length + 1)

    def answer(self, source):
        """Its one symbol."""
        return source[:1]


STEPS = Probe(
    name="steps",
    question="How many steps, one after another, does a gradient take?",
    measure=steps,
    seeds=[0],
    exact=True,
    unit="loop iterations per token",
    claims=[
        *(
            Claim(
                f"as written, “highly sequential”: the gradient of {name} takes two loop iterations per token",
                equal={"quantity": f"{name}, 64 tokens"},
                to=2,
                within=1e-9,
            )
            for name in CELLS
        ),
        Claim(
            "as written, “no longer highly sequential”: attention takes none",
            equal={"quantity": "attention, 64 tokens"},
            to=0,
            within=1e-9,
        ),
    ],
)
TIMES = Probe(
    name="times",
    question="How does the time of a gradient grow with length, at 2048 tokens a batch?",
    measure=times,
    seeds=range(20, 28),
    unit="slope of log time against log length",
    claims=[
        Claim(
            "a reading of “gets worse as the input sequence gets longer”: an LSTM's time grows faster than attention's",
            higher={"quantity": "lstm less attention"},
            than=0,
        ),
        Claim(
            "with the condition of a fixed number of tokens on a CPU: attention's time grows faster than Elman's",
            lower={"quantity": "elman less attention"},
            than=0,
            by=0.1,
        ),
    ],
    caveats=[
        "On an accelerator, idle while a step waits for another, the first may hold; no accelerator was measured."
    ],
)
REACH = Probe(
    name="reach",
    question="What is left of a gradient that goes from the last token to the first, before training?",
    measure=reach,
    seeds=range(20, 28),
    claims=[
        Claim(
            "a reading of “the difficulty with which distant tokens in a sequence can interact”: in an Elman network, "
            "it falls by above a tenth per token",
            lower={"quantity": "elman, factor per token"},
            than=0.9,
        ),
        Claim(
            "attention: above a thousandth is left after 63 tokens",
            higher={"quantity": "attention, decades in 64 tokens"},
            than=-3,
        ),
        Claim(
            "with the condition that gates are not trained: a GRU is no better than an Elman network",
            equal={"quantity": "gru, factor per token"},
            to={"quantity": "elman, factor per token"},
            within=0.1,
        ),
    ],
    caveats=["Xavier matrices, biases of 0: a forget gate that starts open would keep more."],
)
RECALL = Study(
    name="recall",
    question="From how far away can a model learn to fetch a symbol?",
    baseline=Run(
        model=MODELS["attention"],
        task=Recall(symbols=8, length=4, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, decay=Constant()),
        training=Training(steps=300),
    ),
    axes=[
        Axis("model", MODELS),
        Axis("task.length", {str(n): n for n in (4, 8, 32)}, name="distance"),
    ],
    metric="validation_accuracy",
    seeds=range(20, 28),
    claims=[
        *(
            Claim(
                f"as written, “the difficulty with which distant tokens” interact: {cell} falls by above a half",
                lower={"distance": "32"},
                than={"distance": "4"},
                where={"model": cell},
                by=0.5,
            )
            for cell in CELLS
        ),
        Claim(
            "attention does not depend on the distance, within 0.05",
            equal={"distance": "32"},
            to={"distance": "4"},
            where={"model": "attention"},
            within=0.05,
        ),
        Claim(
            "with the condition that gates are trained: at 8 tokens, a GRU does better than an Elman network",
            higher={"model": "gru"},
            than={"model": "elman"},
            where={"distance": "8"},
            by=0.1,
        ),
    ],
    caveats=["One learning rate and 300 steps: how far a recurrent network reaches depends on both."],
)
case = Case(
    claim="A recurrent network computes one token after another, and its distant tokens hardly interact; in attention "
    "neither holds.",
    source="Self-Attention and Transformers, problems with RNN; Transformer (walk-through), introduction; "
    "Vaswani et al. 2017, section 4",
    evidence=[STEPS, TIMES, REACH, RECALL],
    quick=[STEPS, REACH],
)
