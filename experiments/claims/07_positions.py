"""Does attention need positions, and does every position scheme suffice?

Without positions and without a mask, a model is equivariant: permuted tokens give permuted outputs. No such model
learns y_n = n · x_n: given x_n and the set of all tokens, every n is equally likely, so the best output is E[n] · x_n
and the loss is at least Var(n), 22.7 % of E[n²] for N = 16. The texts name two remedies: positions, absolute or
relative; and a causal mask, under which "positions can be dropped in theory".

Pilots (2 other seeds; the floor is 0.083) agreed, with two corrections. A bias by the distance |i − j| (ALiBi) without
a mask never left the floor, and cannot: the model is still equivariant under reversal, n and N + 1 − n remain equally
likely, and their mean is E[n] again. And the remedies differ in speed: after 400 steps additive, concatenated and
rotary positions were below 0.004, the mask alone at 0.03, buckets of distances at 0.08; after 2000, the last two were
at 0.003 to 0.009. Those two, and ALiBi, therefore get 2000 steps. "Learned" means below a quarter of the floor; at a
tenth, 0.008, which was tried first, pilots of the slow ones fell on both sides.

Cost: 72 runs in 9 programs, about 380 s on one CPU core; the quick form (the symmetry alone) about 10 s.
"""

import jax
import numpy as np

from flaxformer import (
    AdamW,
    Alibi,
    Attention,
    Axis,
    Claim,
    ConcatenatedIndex,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    Probe,
    RelativeBuckets,
    Rotary,
    Run,
    ScaledIndex,
    Sinusoidal,
    Study,
    Training,
)
from flaxformer.claims import Case
from flaxformer.model import apply, init

TASK = ScaledIndex(length=16, batch_size=32, evaluation_batches=64)
FLOOR = TASK.references()["position-blind"]
MODEL = ModelConfig(
    layers=2,
    d_model=32,
    attention=Attention(heads=2),
    positions=NoPositions(),
    mask_pattern="bidirectional",
    inputs=TASK.inputs,
    head=TASK.head,
)
SCHEMES = {
    "learned": LearnedPositions(max_length=TASK.length, std=1.0),
    "sinusoidal": Sinusoidal(),
    "concatenated": ConcatenatedIndex(scale=1 / TASK.length),
    "rotary": Rotary(),
    "buckets": RelativeBuckets(std=1.0),
    "|i − j|": Alibi(),
}
MODELS = {"none": MODEL, "causal mask": MODEL.replace(mask_pattern="causal")} | {
    name: MODEL.replace(positions=scheme) for name, scheme in SCHEMES.items()
}


def measure(seed: int) -> dict[str, float]:
    """Return log10 of the relative error of f(P x) = P f(x) per untrained model, for a random P and for reversal."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(TASK.length, 1)).astype(np.float32)
    orders = {"random order": random.permutation(TASK.length), "reversal": np.arange(TASK.length)[::-1]}
    numbers = {}
    for name, config in MODELS.items():
        params, said = init(jax.random.key(seed), config), jax.jit(apply)
        plain = np.asarray(said(params, config, x))
        for kind, order in orders.items():
            apart = np.abs(said(params, config, x[order]) - plain[order]).max()
            numbers[f"{kind}, {name}"] = np.log10(apart / np.abs(plain).max())
    return numbers


def equivariant(text: str, quantity: str) -> Claim:
    """Return a claim of equality up to rounding."""
    return Claim(f"{text}: apart by below 1e-5", lower={"quantity": quantity}, than=-5)


def learns(text: str, name: str) -> Claim:
    """Return a claim that the loss falls below a quarter of the floor."""
    return Claim(f"{text}: loss below a quarter of the floor", lower={"positions": name}, than=FLOOR / 4)


def stays(text: str, name: str) -> Claim:
    """Return a claim that the loss is at the floor, within a twentieth."""
    return Claim(text, equal={"positions": name}, to=FLOOR, within=FLOOR / 20)


def study(name: str, models: list[str], steps: int, claims: list[Claim]) -> Study:
    """Return a study of the given models and number of steps."""
    return Study(
        name=name,
        question=f"Which models learn y_n = n · x_n in {steps} steps?",
        baseline=Run(
            model=MODELS[models[0]],
            task=TASK,
            optimizer=AdamW(learning_rate=3e-3, warmup_steps=30),
            training=Training(steps=steps, evaluate_every=steps // 4),
        ),
        axes=[Axis("model", {name: MODELS[name] for name in models}, name="positions")],
        seeds=range(20, 28),
        claims=claims,
        caveats=["One small model and one learning rate; the floor alone holds for any model and any training."],
    )


case = Case(
    claim="Self-attention knows no order: y_n = n · x_n takes positions, or a causal mask.",
    source="What Happens in A Transformer Layer, second appendix; Self-Attention and Transformers, on positions",
    evidence=[
        Probe(
            name="symmetry",
            question="Which models give permuted outputs for permuted tokens?",
            measure=measure,
            seeds=range(20, 28),
            claims=[
                equivariant("without positions and mask, outputs are permuted too", "random order, none"),
                *(
                    Claim(f"not with {name}: by above 1e-3", higher={"quantity": f"random order, {name}"}, than=-3)
                    for name in [*SCHEMES, "causal mask"]
                ),
                equivariant("but with |i − j|, reversal still reverses", "reversal, |i − j|"),
            ],
            caveats=["At initialisation, with learned positions and buckets of standard deviation 1."],
        ),
        study(
            "fast",
            ["none", "causal mask", "learned", "sinusoidal", "concatenated", "rotary"],
            steps=400,
            claims=[
                stays(
                    "as written, “fails to learn”: without positions and mask, the loss stays at the floor",
                    "none",
                ),
                learns("learned positions", "learned"),
                learns("sinusoidal positions", "sinusoidal"),
                learns("a concatenated index", "concatenated"),
                learns("rotary positions", "rotary"),
                Claim(
                    "after 400 steps, sinusoids are better than a causal mask alone, by above a tenth of the floor",
                    lower={"positions": "sinusoidal"},
                    than={"positions": "causal mask"},
                    by=FLOOR / 10,
                ),
            ],
        ),
        study(
            "slow",
            ["causal mask", "buckets", "|i − j|"],
            steps=2000,
            claims=[
                learns("buckets of distances", "buckets"),
                learns("a reading of “relative or absolute position”, a bias by |i − j|", "|i − j|"),
                stays("a bias by |i − j| without a mask: the loss stays at the floor", "|i − j|"),
                learns("as written, “can be dropped in theory when employing causal masks”", "causal mask"),
            ],
        ),
    ],
)
