"""Is an encoder-decoder better than a decoder with the same parameters or the same compute?

The notes on self-attention present the encoder-decoder as the form for one sequence in and another out; the reason to
prefer it at modest size is Raffel et al. 2020 (table 2). A comparison can match only one quantity at a time: an
encoder-decoder of L + L layers has the parameters of a decoder of 2L layers and the operations of one of L, because the
decoder takes source and target through every layer. Here L = 2, and the task is to sort 8 of 16 symbols, where the
first target token needs the whole source; the loss is on target tokens alone. Cross-attention costs parameters that a
decoder does not have: without biases and gains, a feed-forward width of F + D in the decoders matches the parameters
exactly, and the operations, which the probe counts, within a few per cent. The statements tested:

- the loss of the encoder-decoder is lower, at the same parameters, and at the same compute;
- with the condition that the decoder is causal on its source too: a prefix-LM, which reads the source bidirectionally
  as an encoder does (the same weights, another mask), is better than the decoder, and at equal parameters within 0.05
  nats of the encoder-decoder, at twice its operations.

The use of cross-attention is tested too: with the source of another example the loss must rise (a model that ignores
its source would not change), and an encoder without positions gives its decoder a set, independent of the order.

Pilot (seeds 100 to 102), nats: encoder-decoder 0.016; of equal parameters, decoder 0.062 and prefix-LM 0.041; of equal
compute, 0.113 and 0.085; with the source of another example, 5.9.

Command: flaxformer claims 15
Cost: 40 runs in 5 programs and a probe, about 170 CPU-seconds; quick, the probe alone: 10.
Expected: all claims supported.
"""

import jax
import jax.numpy as jnp

from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LayerNorm,
    ModelConfig,
    NoPositions,
    Probe,
    Run,
    Sort,
    Study,
    Tokens,
    Training,
    evaluate,
    model,
    replace_at,
)
from flaxformer.claims import Case
from flaxformer.core.params import count

D, F = 32, 128
DECODER = ModelConfig(
    vocabulary=17,
    layers=4,
    d_model=D,
    attention=Attention(bias=False, out_bias=False),
    feed_forward=Dense(d_ff=F + D, bias=False),
    norm_kind=LayerNorm(affine="none"),
)
BOTH = replace_at(DECODER, {"layers": 2, "feed_forward.d_ff": F}).with_encoder(inputs=Tokens(shared=True))
MODELS = {
    "encoder-decoder": BOTH,
    "decoder of equal parameters": DECODER,
    "prefix-LM of equal parameters": DECODER.replace(mask_pattern="prefix"),
    "decoder of equal compute": DECODER.replace(layers=2),
    "prefix-LM of equal compute": DECODER.replace(layers=2, mask_pattern="prefix"),
}
FORMS = {name: "joined" if config.encoder is None else "paired" for name, config in MODELS.items()}
TASK = Sort(symbols=16, length=8, form="paired", batch_size=32)


def operations(name: str) -> float:
    """Return the operations that the compiler counts for the logits of a batch."""
    batch = jax.eval_shape(TASK.replace(form=FORMS[name]).load().batch, jax.random.key(0), 0)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), MODELS[name]))
    run = jax.jit(lambda params, batch: model.apply(params, MODELS[name], batch.inputs, **batch.arguments))
    return run.lower(params, batch).compile().cost_analysis()["flops"]


def sizes(seed: int) -> dict[str, float]:
    """Return parameters and operations relative to the encoder-decoder, and the effect of the order of a source."""
    own = count(model.specs(BOTH)), operations("encoder-decoder")
    numbers = {}
    for name in list(MODELS)[1:]:
        numbers[f"parameters, {name}"] = count(model.specs(MODELS[name])) / own[0]
        numbers[f"operations, {name}"] = operations(name) / own[1]
    config = BOTH.replace(encoder=BOTH.encoder.replace(positions=NoPositions()))
    params, batch = model.init(jax.random.key(seed), config), TASK.load().batch(jax.random.key(1), 0)
    sources = batch.source, batch.source[:, ::-1]
    one, other = (model.apply(params, config, batch.inputs, source=source) for source in sources)
    return numbers | {"change of the logits, source reversed": float(jnp.abs(one - other).max())}


class Astray:
    """Data of a task in which each example has the source of its neighbour in the batch."""

    def __init__(self, task: Sort) -> None:
        self.task = task

    def evaluation(self):
        """The evaluation set, with the sources moved on by one."""
        batch = self.task.load().evaluation()
        if batch.source is not None:
            return batch.replace(source=jnp.roll(batch.source, 1, axis=1))
        source, rest = jnp.split(batch.inputs, [self.task.length], axis=-1)
        return batch.replace(inputs=jnp.concatenate([jnp.roll(source, 1, axis=1), rest], axis=-1))


def measure(params, run) -> dict:
    """Return the loss with the source of another example."""
    return {"astray": evaluate(params, run, Astray(run.task))["validation_loss"]}


def arm(name: str) -> dict[str, str]:
    """Return the labels of a model and of the task in the form that it reads."""
    return {"model": name, "form": name}


def cost_of_a_wrong_source(rows) -> dict[str, float]:
    """Return how much the loss of the encoder-decoder rises with another source."""
    row = rows["model=encoder-decoder,form=encoder-decoder"]
    return {"cost of another's source": row["astray"] - row["validation_loss"]}


SIZES = Probe(
    name="sizes",
    question="Are the models of one size, and what does an encoder without positions say?",
    measure=sizes,
    seeds=[0],
    exact=True,
    claims=[
        Claim(
            "4 decoder layers have the parameters of 2 + 2",
            equal={"quantity": "parameters, decoder of equal parameters"},
            to=1,
            within=1e-9,
        ),
        Claim(
            "2 decoder layers have the operations of 2 + 2",
            equal={"quantity": "operations, decoder of equal compute"},
            to=1,
            within=0.1,
        ),
        Claim(
            "the order of the source makes no difference if the encoder has no positions",
            equal={"quantity": "change of the logits, source reversed"},
            to=0,
            within=1e-5,
        ),
    ],
)
SORT = Study(
    name="sort",
    question="Does an encoder-decoder learn to sort faster than a decoder of its size?",
    baseline=Run(
        model=BOTH,
        task=TASK,
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400),
    ),
    axes=[Axis("model", MODELS), Axis("task.form", FORMS)],
    combine="zip",
    measure=measure,
    derive=cost_of_a_wrong_source,
    seeds=range(20, 28),
    claims=[
        *(
            Claim(
                f"as written, “better performance than decoder-only models at modest scale”: it beats a {name}",
                lower=arm("encoder-decoder"),
                than=arm(name),
                by=0.02,
            )
            for name in ("decoder of equal parameters", "decoder of equal compute")
        ),
        *(
            Claim(
                f"with the condition that the decoder is causal on its source: a {name} beats it",
                lower=arm(name),
                than=arm(name.replace("prefix-LM", "decoder")),
            )
            for name in ("prefix-LM of equal parameters", "prefix-LM of equal compute")
        ),
        Claim(
            "a prefix-LM of equal parameters is within 0.05 nats of the encoder-decoder",
            equal=arm("prefix-LM of equal parameters"),
            to=arm("encoder-decoder"),
            within=0.05,
        ),
        Claim(
            "the source is used: that of another example costs more than a nat",
            higher={"quantity": "cost of another's source"},
            than=1.0,
        ),
    ],
    caveats=[
        "One synthetic task, one learning rate and 400 steps: how fast, not how well in the end, since all can sort.",
        "Raffel et al. compare after pre-training on text, which no data here allow.",
    ],
)
case = Case(
    claim="At modest scale, an encoder-decoder performs better than a decoder alone.",
    source="Self-Attention and Transformers, Transformer encoder-decoder; Raffel et al. 2020, section 3.2 and table 2",
    evidence=[SIZES, SORT],
    quick=[SIZES],
)
