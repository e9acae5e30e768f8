"""Is a wide feed-forward layer, of 5d, a good place for parameters?

The text: the inner width is often 5d, substantially more than d, since a wide matrix product is an efficient place for
computation and parameters. (4d is what Vaswani et al. 2017 and most models since have: see E22 in FOUNDING_TEXTS.md.)
That more width does better at the same depth and d is one claim, and hardly a test: it has more parameters. The fair
form gives the parameters that a narrow layer saves to something else, and keeps the number of parameters within 2 %:
to more layers (1d with 4, 2d with 3, 4d with 2), or to the width of the whole model (1d at 86, 2d at 76, 4d at 64, 5d
at 60). The first trade turns out at d = 64 almost exact, because 2 layers × (4 + 2·4) d² = 4 layers × (4 + 2·1) d².

In a pilot (seeds 100 to 102), 4d beat 1d with twice the layers by 0.04 nats at equal parameters, and lost to 1d in a
wider model by 0.016: what is efficient depends on what gives the parameters up.

Cost: 80 runs in 10 programs, about 250 CPU seconds; --quick, 8 runs in 2 programs, about 25.
"""

import dataclasses

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    ModelConfig,
    Probe,
    Run,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case
from flaxformer.core.params import count


def shape(times: int, layers: int = 2, d_model: int = 64) -> ModelConfig:
    """Return a model whose feed-forward layers are `times` as wide as the model."""
    feed_forward = Dense(d_ff=times * d_model)
    return ModelConfig(layers=layers, d_model=d_model, attention=Attention(heads=2), feed_forward=feed_forward)


EQUAL = {
    "4d": shape(4),
    "1d · 4 layers": shape(1, layers=4),
    "2d · 3 layers": shape(2, layers=3),
    "1d · width 86": shape(1, d_model=86),
    "2d · width 76": shape(2, d_model=76),
    "5d · width 60": shape(5, d_model=60),
}
WIDER = {f"{times}d": shape(times) for times in (1, 2, 5, 8)}


def parameters(seed: int) -> dict[str, float]:
    """Return the parameters of each shape, relative to those of 4d."""
    return {
        f"parameters, {name}": count(model.specs(own)) / count(model.specs(EQUAL["4d"])) for name, own in EQUAL.items()
    }


equal = Probe(
    name="parameters",
    question="Have the shapes that are to be compared as many parameters?",
    measure=parameters,
    seeds=[0],
    exact=True,
    claims=[
        Claim(f"as many as 4d, within 2 %: {name}", equal={"quantity": f"parameters, {name}"}, to=1, within=0.02)
        for name in EQUAL
        if name != "4d"
    ],
)
trained = Study(
    name="training",
    question="What does the width of the feed-forward layer bring, by itself and at equal parameters?",
    baseline=Run(
        model=EQUAL["4d"],
        task=StandardLibrary(length=32, batch_size=16, evaluation_batches=32),
        optimizer=AdamW(learning_rate=3e-3),
        training=Training(steps=200),
    ),
    axes=[Axis("model", {**EQUAL, **WIDER}, name="shape")],
    seeds=range(20, 28),
    claims=[
        Claim("with more parameters, 4d beats 1d", lower={"shape": "4d"}, than={"shape": "1d"}, by=0.02),
        Claim("with more parameters, 8d beats 4d", lower={"shape": "8d"}, than={"shape": "4d"}),
        Claim(
            "the 5d of the text is no different from 4d by 0.02 nats",
            equal={"shape": "5d"},
            to={"shape": "4d"},
            within=0.02,
        ),
        Claim(
            "a reading of “an efficient place”: at equal parameters, 4d beats 1d with twice the layers",
            lower={"shape": "4d"},
            than={"shape": "1d · 4 layers"},
        ),
        Claim(
            "a reading of “an efficient place”: at equal parameters, 4d beats 1d in a wider model",
            lower={"shape": "4d"},
            than={"shape": "1d · width 86"},
        ),
        Claim(
            "at equal parameters, 5d in a narrower model is no different from 4d by 0.02 nats",
            equal={"shape": "5d · width 60"},
            to={"shape": "4d"},
            within=0.02,
        ),
    ],
    caveats=[
        "Two to four layers of width 60 to 86 and 200 steps at one learning rate: the share of the feed-forward layers "
        "that pays best may differ in large models.",
        "A wider model has larger embeddings too, which count.",
    ],
)

case = Case(
    claim="The feed-forward layer, 5 times as wide as the model, is an efficient place for parameters.",
    source="Self-Attention and Transformers, elementwise nonlinearity; Vaswani et al. 2017, section 3.3 and table 3",
    evidence=[equal, trained],
    quick=[
        dataclasses.replace(
            trained,
            seeds=range(4),
            axes=[Axis("model", {name: EQUAL[name] for name in ("4d", "1d · width 86")}, name="shape")],
            claims=[claim for claim in trained.claims if claim.second == {"shape": "1d · width 86"}],
        )
    ],
)
