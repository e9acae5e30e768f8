"""Every config field has an effect: changing it changes the parameters, the loss, the update or the data."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.checkpoint.config import classes_within
from flaxformer.components import (
    GRU,
    NTK,
    POST,
    Alibi,
    Attention,
    BatchNorm,
    ByRole,
    Classifier,
    ConcatenatedIndex,
    DeepNorm,
    Dense,
    DepthScaled,
    Elman,
    Gated,
    LanguageModel,
    LayerScale,
    LearnedPositions,
    LeCun,
    LinearScaling,
    Llama3Scaling,
    MuP,
    Normal,
    NormPlacement,
    NTKScaling,
    Orthogonal,
    Patches,
    Regressor,
    RelativeBuckets,
    ReZero,
    RMSNorm,
    Role,
    Rotary,
    Tokens,
    Vectors,
    YaRN,
    ZeroCentredRMSNorm,
)
from flaxformer.config import ZERO_OUTPUTS, Block, ModelConfig, recurrent_model
from flaxformer.core.paths import get_at, replace_at
from flaxformer.tasks import (
    AssociativeRecall,
    Copy,
    Digits,
    Domain,
    EvaluationSet,
    Images,
    Induction,
    MaskedTokens,
    Mixture,
    MixtureStage,
    ModularAddition,
    MultipleChoice,
    PairedFiles,
    PairedTokens,
    Pairs,
    Reverse,
    ScaledIndex,
    Sort,
    SpanCorruption,
    StandardLibrary,
    TableRows,
    Task,
    TextClassification,
    TextFiles,
    TextLabels,
    TextPair,
    TokenFiles,
    TwoTargetAverage,
)
from flaxformer.training import (
    SGD,
    Adafactor,
    AdamW,
    Adopt,
    BatchStage,
    From,
    Lamb,
    Lion,
    LoRA,
    Muon,
    Rate,
    Rename,
    Run,
    ScheduleFree,
    Seeds,
    Training,
    WarmupStableDecay,
    ZLoss,
    evaluate,
    evaluation_params,
    start,
    train_chunk,
)

MODEL = ModelConfig(
    vocabulary=7,
    layers=1,
    d_model=8,
    attention=Attention(heads=2, window=2, logit_cap=3.0),
    feed_forward=Dense(d_ff=11),
    dropout=0.1,
)
SMALL = {"batch_size": 2, "evaluation_batches": 2}
BASE = Run(
    model=MODEL,
    task=Copy(symbols=5, length=3, **SMALL),
    optimizer=AdamW(warmup_steps=1.0, final_fraction=0.1, weight_decay=0.1, clip=0.5, learning_rate=0.1),
    training=Training(steps=4, label_smoothing=0.1),
)
PLAIN = BASE.replace(
    model=ModelConfig(vocabulary=7, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11))
)


def on(base, **changes):
    """Return a base with changed fields."""
    return replace_at(base, {name.replace("__", "."): value for name, value in changes.items()})


def learning(task, **model):
    """Return a base for another task."""
    return PLAIN.replace(task=task, model=PLAIN.model.replace(**model))


PAIRED = learning(Copy(symbols=5, length=3, form="paired", **SMALL), encoder=PLAIN.model.with_encoder().encoder)
INDEX = learning(ScaledIndex(length=5, width=2, **SMALL), inputs=Vectors(width=2), head=Regressor(numbers=2))
TWO = learning(
    TwoTargetAverage(items=3, key_width=2, value_width=2, **SMALL),
    inputs=Vectors(width=6),
    head=Regressor(numbers=2, pool="last"),
)
IMAGES = learning(
    Digits(**SMALL), inputs=Patches(height=8, width=8, size=4), head=Classifier(classes=10), layers=1, d_model=8
)
RECALL = AssociativeRecall(pairs=2, queries=1, keys=3, values=3, **SMALL)
SCALED = on(INDEX, model__parametrization=MuP(base_width=4), optimizer=SGD(learning_rate=0.1, weight_decay=0.1))
RECURRENT = PLAIN.replace(model=recurrent_model(Elman(), vocabulary=7, d_model=8, dropout=0.1))

# For every base, other values of its fields; several paths where one field asks for another.
OTHER = [
    (BASE, {
        "seed": 1, "model": RECURRENT.model, "task": RECALL, "optimizer": AdamW(learning_rate=0.1),
        "training": Training(steps=4),
        "model.vocabulary": 9, "model.inputs": Tokens(token_types=2), "model.layers": 2, "model.d_model": 12,
        "model.head": LanguageModel(tied=True), "model.initializer": LeCun(), "model.inputs.std": 0.5,
        "model.dropout": 0.5, "model.attention": Attention(heads=2), "model.attention.heads": 4,
        "model.attention.key_value_heads": 1, "model.attention.d_head": 3, "model.attention.d_value": 3,
        "model.norm": POST, "model.norm_kind": RMSNorm(), "model.attention_norm": POST, "model.residual": ReZero(),
        "model.parametrization": MuP(base_width=4),
        "model.attention_residual": False, "model.feed_forward_residual": False, "model.parallel": True,
        "model.positions": LearnedPositions(max_length=6), "model.attention.window": 3,
        "model.attention.scale_exponent": 1.0, "model.attention.scale_width": "model",
        "model.attention.logit_cap": None, "model.attention.query_key_norm": RMSNorm(),
        "model.attention.share_query_key": True, "model.attention.value_form": "full",
        "model.attention.frozen_pattern": 6, "model.attention.bias": False, "model.attention.out_bias": False,
        "model.feed_forward": Gated(d_ff=11), "model.feed_forward.d_ff": 13, "model.feed_forward.activation": "gelu",
        "model.feed_forward.bias": False,
        "model.norm.pre": False, "model.norm.post_branch": True, "model.norm.post_residual": True,
        "model.norm.embedding": True, "model.norm.final": False,
        "model.norm_kind.affine": "none", "model.norm_kind.over": "sequence",
        "model.norm_kind.epsilon": 0.1, "model.positions.base": 10.0, "model.positions.layout": "split",
        "model.initializer.gain": 0.5, "model.initializer.distribution": "uniform", "model.initial": (ZERO_OUTPUTS,),
        "model.head.tied": True, "model.head.bias": True, "model.head.transform": "gelu",
        "model.head.scale_exponent": 0.5, "model.inputs.scale_exponent": 0.5, "model.inputs.frozen": True,
        "model.head.logit_cap": 0.5,
        "model.inputs.token_types": 2,
        "task.batch_size": 3, "task.evaluation_batches": 3, "task.symbols": 4, "task.length": 2,
        "optimizer.learning_rate": 0.01, "optimizer.warmup_steps": 3.0, "optimizer.decay": "cosine",
        "optimizer.final_fraction": 0.9, "optimizer.beta1": 0.5, "optimizer.beta2": 0.5, "optimizer.epsilon": 0.1,
        "optimizer.weight_decay": 1.0, "optimizer.clip": 0.01, "optimizer.moment_dtype": "bfloat16",
        "optimizer.cautious_decay": True,
        "loss_terms": (ZLoss(),),
        "seeds": Seeds(init=1), "seeds.init": 1, "seeds.data": 1, "seeds.dropout": 1,
        "training.steps": 3, "training.evaluate_every": 2, "training.label_smoothing": 0.5,
        "training.micro_batches": 2, "training.ema": 0.5, "training.precision": "bfloat16",
        "training.freeze": ("embedding/*",), "training.rates": (Rate(weights=("embedding/*",), factor=0.5),),
        "training.batch_stages": (BatchStage(start=0, size=1),),
        "adapter": LoRA(weights=("blocks/*/attention/query",), rank=2),
    }),
    (on(BASE, training__batch_stages=(BatchStage(start=0, size=1),)), {
        "training.batch_stages.0.start": 2, "training.batch_stages.0.size": 2,
    }),
    (on(BASE, training__rates=(Rate(weights=("embedding/*",), factor=0.5),)), {
        "training.rates.0.factor": 0.1, "training.rates.0.weights": ("blocks/*",),
    }),
    (on(BASE, adapter=LoRA(weights=("blocks/*/attention/query",), rank=2)), {
        "adapter.rank": 1, "adapter.alpha": 3.0, "adapter.trained": ("head/*",),
        "adapter.weights": ("blocks/*/attention/key",),
    }),
    (on(BASE, model__layers=2, model__residual=DepthScaled(base_layers=1)), {
        "model.residual.exponent": 0.5, "model.residual.base_layers": 2,
    }),
    (SCALED, {
        "model.parametrization.hidden.init": 0.5, "model.parametrization.hidden.rate": 0.5,
        "model.parametrization.hidden.decay": 0.5, "model.parametrization.hidden.multiplier_power": 0.25,
        "model.parametrization.hidden.init_power": 0.25, "model.parametrization.hidden.rate_power": 0.5,
        "model.parametrization.hidden.decay_power": 0.5, "model.parametrization.hidden.gradient_power": 0.5,
    }),
    (PAIRED, {
        "model.encoder": PLAIN.model.with_encoder(layers=2).encoder, "model.cross_attention_residual": False,
        "model.cross_attention": Attention(heads=4),
        "model.encoder.inputs.shared": True,
        ("task.form", "model.encoder"): ("joined", None),
    }),
    (on(PLAIN, model__layers=2), {"model.mask_pattern": "prefix"}),  # one layer alone reads none of it
    (on(BASE, model__head=LanguageModel(transform="gelu")), {"model.head.transform_bias": False}),
    (on(BASE, loss_terms=(ZLoss(),)), {"loss_terms.0.weight": 0.5}),
    (on(BASE, model__layers=2), {"model.pattern": (Block(), Block(attention=MODEL.attention.replace(window=1)))}),
    (on(BASE, model__layers=2, model__residual=ReZero(), model__pattern=(Block(), Block())), {
        "model.pattern.1.attention": MODEL.attention.replace(window=1), "model.pattern.1.feed_forward": None,
        "model.pattern.1.norm": POST, "model.pattern.1.norm_kind": RMSNorm(), "model.pattern.1.attention_norm": POST,
        "model.pattern.1.residual": ReZero(initial=0.5), "model.pattern.1.positions": Alibi(),
    }),
    (on(PAIRED, model__pattern=(Block(),)), {"model.pattern.0.cross_attention": Attention(heads=4)}),
    (on(BASE, model__layers=4), {"model.distinct_blocks": 2}),
    (on(BASE, model__layers=4, model__distinct_blocks=2), {"model.sharing": "group"}),
    (on(BASE, model__feed_forward=Gated(d_ff=11)), {
        "model.feed_forward": None, "model.feed_forward.d_ff": 13, "model.feed_forward.activation": "gelu",
        "model.feed_forward.bias": False,
    }),
    (on(BASE, model__norm_kind=RMSNorm()), {"model.norm_kind.affine": "none", "model.norm_kind.epsilon": 0.1}),
    (on(BASE, model__norm_kind=ZeroCentredRMSNorm()), {"model.norm_kind.epsilon": 0.1}),
    (on(BASE, model__norm_kind=BatchNorm()), {
        "model.norm_kind.affine": "none", "model.norm_kind.epsilon": 0.1, "model.norm_kind.momentum": 0.5,
    }),
    (on(BASE, model__residual=ReZero()), {"model.residual.initial": 0.5}),
    (on(BASE, model__residual=LayerScale()), {"model.residual.initial": 0.5}),
    (on(BASE, model__residual=DeepNorm()), {"model.residual.decoder_layers": 3}),
    (on(BASE, model__positions=LearnedPositions(max_length=6)), {
        "model.positions.max_length": 7, "model.positions.std": 1.0,
    }),
    (on(BASE, model__positions=ConcatenatedIndex()), {"model.positions.scale": 0.5}),
    (on(BASE, model__positions=Rotary()), {
        "model.positions.base": 10.0, "model.positions.layout": "interleaved", "model.positions.rotated_width": 2,
        "model.positions.scaling": LinearScaling(factor=2.0), "model.attention_positions": Alibi(),
    }),
    (on(BASE, model__positions=Rotary(scaling=LinearScaling(factor=2.0))), {"model.positions.scaling.factor": 4.0}),
    (on(BASE, model__positions=Rotary(scaling=NTKScaling(factor=2.0))), {"model.positions.scaling.factor": 4.0}),
    (on(BASE, model__positions=Rotary(base=10.0, scaling=YaRN(factor=2.0, original_length=64.0))), {
        "model.positions.scaling.factor": 4.0, "model.positions.scaling.original_length": 16.0,
        "model.positions.scaling.fast": 2.0, "model.positions.scaling.slow": 4.0,
        "model.positions.scaling.magnitude_slope": 0.5, "model.positions.scaling.attention_factor": 1.5,
        "model.positions.scaling.truncate": False,
    }),
    (on(BASE, model__positions=Rotary(base=10.0, scaling=Llama3Scaling(original_length=64.0))), {
        "model.positions.scaling.factor": 4.0, "model.positions.scaling.original_length": 32.0,
        "model.positions.scaling.low": 2.0, "model.positions.scaling.high": 8.0,
    }),
    (on(PLAIN, model__positions=RelativeBuckets(buckets=4, max_distance=4)), {
        "model.positions.buckets": 5, "model.positions.max_distance": 9, "model.positions.std": 1.0,
        "model.positions": Alibi(),
    }),
    (on(BASE, optimizer__decay=WarmupStableDecay(share=1.0)), {
        "optimizer.decay.share": 0.1, "optimizer.decay.cool_down": "linear",
    }),
    (on(BASE, model__initializer=LeCun()), {
        "model.initializer.gain": 0.5, "model.initializer.distribution": "uniform",
    }),
    (on(BASE, model__initializer=Normal()), {
        "model.initializer.deviation": 0.5, "model.initializer.distribution": "truncated",
    }),
    (on(BASE, model__initializer=Orthogonal()), {"model.initializer.gain": 0.5}),
    (on(BASE, model__initial=(ZERO_OUTPUTS.replace(factor=0.5),)), {
        "model.initial": (), "model.initial.0.weights": ("head/*",), "model.initial.0.initializer": LeCun(),
        "model.initial.0.factor": 0.0, "model.initial.0.depth_power": 0.5,
    }),
    (RECURRENT, {
        "model.vocabulary": 9, "model.inputs": Tokens(token_types=2), "model.layers": 2, "model.d_model": 12,
        "model.head": LanguageModel(tied=True), "model.initializer": Normal(), "model.inputs.std": 0.5,
        "model.dropout": 0.5, "model.attention": GRU(), "model.attention.activation": "relu",
    }),
    (on(BASE, task=RECALL), {
        "task.pairs": 1, "task.queries": 2, "task.keys": 4, "task.values": 2,
        "task.batch_size": 3, "task.evaluation_batches": 3,
    }),
    (INDEX, {
        "task.length": 6, "task.normalise": False, "task.batch_size": 3, "task.evaluation_batches": 3,
        "model.head.bias": False,
        ("task.width", "model.inputs.width", "model.head.numbers"): (3, 3, 3),
    }),
    (TWO, {
        "task.items": 4, "task.batch_size": 3, "task.evaluation_batches": 3,
        ("task.key_width", "model.inputs.width"): (3, 8),
        ("task.value_width", "model.inputs.width", "model.head.numbers"): (3, 7, 3),
    }),
    (IMAGES, {
        "model.inputs.size": 2, "model.inputs.class_token": True, "model.head.pool": "last", "model.head.bias": False,
        "model.head.classes": 11, "task.split_seed": 1, "task.validation_tenths": 3, "task.batch_size": 3,
        "task.evaluation_batches": 3,
    }),
    (on(IMAGES, model__inputs__class_token=True), {"model.inputs.std": 0.5}),
]  # fmt: skip
for _task in (Reverse, Sort):
    base = on(BASE, task=_task(symbols=5, length=3, **SMALL))
    fields = {"task.batch_size": 3, "task.evaluation_batches": 3, "task.symbols": 4, "task.length": 2}
    OTHER.append((base, fields))
    OTHER.append(
        (on(PAIRED, task=base.task.replace(form="paired")), {("task.form", "model.encoder"): ("joined", None)})
    )
for _kind in (ByRole, MuP, NTK):
    fields = {f"model.parametrization.{role}": Role(rate=0.5) for role in ("input", "hidden", "output", "vector")}
    fields |= {f"model.parametrization.{name}": value for name, value in (("base_width", 2), ("base_layers", 1))}
    base = on(INDEX, model__parametrization=_kind(base_width=4, base_layers=2, depth_rate_power=0.5))
    OTHER.append((base, fields | {"model.parametrization.depth_rate_power": 1.0}))
OPTIMIZERS = {  # other values of the fields that an optimizer has for itself
    SGD: {"momentum": 0.5, "nesterov": True},
    Lion: {"beta1": 0.5, "beta2": 0.5},
    Adopt: {"beta1": 0.5, "beta2": 0.5, "epsilon": 0.1},
    Lamb: {"beta1": 0.5, "beta2": 0.5, "epsilon": 0.1},
    Adafactor: {"decay_exponent": 0.4, "threshold": 0.1, "epsilon": 0.1, "factored_from": 4},
    Muon: {
        "momentum": 0.5, "nesterov": False, "iterations": 3, "rms": None, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.1,
    },
    ScheduleFree: {"beta1": 0.5, "beta2": 0.5, "epsilon": 0.1},
}  # fmt: skip
SHARED = {
    "learning_rate": 0.01, "warmup_steps": 3.0, "decay": "cosine", "final_fraction": 0.9, "weight_decay": 1.0,
    "clip": 10.0, "moment_dtype": "bfloat16", "cautious_decay": True,
}  # fmt: skip
for _kind, _own in OPTIMIZERS.items():
    numbers = {"warmup_steps": 1.0, "final_fraction": 0.1, "weight_decay": 0.1, "clip": 0.1, "learning_rate": 0.1}
    fields = {f"optimizer.{name}": value for name, value in (SHARED | _own).items()}
    OTHER.append((on(BASE, optimizer=_kind(decay="linear", **numbers)), fields))
OTHER.append((on(BASE, training__precision="bfloat16"), {"model.head.wide_logits": False}))
for _, fields in OTHER:
    if "task.evaluation_batches" in fields:
        fields["task.evaluation_batch_size"] = 3
BY_DESIGN = {
    (Tokens, "lookup"): "two ways to the same numbers",
    (ModelConfig, "d_memory"): "the caller gives a memory, a task does not",
    (ModelConfig, "checkpoint"): "what a checkpoint says of tokens and labels; tests/interop/test_huggingface_kept.py",
    (Run, "init"): "loads files; see tests/training and tests/study/test_initial_weights.py",
    (Patches, "height"): "the task's images decide",
    (Patches, "width"): "the task's images decide",
    (Patches, "channels"): "the task's images decide",
    (Regressor, "pool"): "the task decides",
    (Run, "evaluations"): "further columns; tests/training/test_evaluations.py",
    (Training, "remat"): "another way to the same numbers",
    (Training, "offload_optimizer"): "another place of the same numbers",
}
ELSEWHERE = {StandardLibrary, TextFiles, TokenFiles, MaskedTokens, SpanCorruption, PairedFiles, Images, Induction}
ELSEWHERE |= {PairedTokens, TextPair, ModularAddition, Task, Mixture, Domain, MixtureStage}
ELSEWHERE |= {Pairs, TableRows, TextLabels}
ELSEWHERE |= {EvaluationSet, MultipleChoice, TextClassification, From, Rename}
"""Classes whose fields are tested elsewhere: tests/tasks, tests/training/test_evaluations.py, and sources of weights in
tests/study/test_initial_weights.py."""


def changes(path, value):
    return dict(zip(path, value, strict=True)) if isinstance(path, tuple) else {path: value}


def marks_of(base, place):
    """Return the marks: of every base, one field in five is tested by default or in the slow tests."""
    if place % 5:
        return pytest.mark.exhaustive
    return () if base in (BASE, PAIRED, RECURRENT) else pytest.mark.slow


CASES = [
    pytest.param(
        base,
        changes(path, value),
        id=f"{i}: {path if isinstance(path, str) else path[0]}",
        marks=marks_of(base, place),
    )
    for i, (base, others) in enumerate(OTHER)
    for place, (path, value) in enumerate(others.items())
]


def shapes(run):
    """Return the shapes of the parameters and of the evaluation data; if these change, no training is needed."""
    return jax.tree.map(
        lambda leaf: leaf.shape, jax.eval_shape(lambda: (start(run).params, run.task.load().evaluation()))
    )


@functools.partial(jax.jit, static_argnames="steps")
def train(run, source, steps):
    state, metrics = train_chunk(start(run), run, source, steps)
    return metrics["loss"], state.params, evaluate(evaluation_params(state, run), run, source)


@functools.cache
def results(run):
    """Return losses, final parameters and evaluation of a run."""
    return jax.tree.leaves(train(jax.tree.map(jnp.asarray, run), run.task.load(), run.training.steps))


def equal(one, other):
    return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.every(4, "long")
@pytest.mark.every(4)
@pytest.mark.parametrize(("base", "change"), CASES)
def test_every_field_changes_the_result(base, change):
    changed = replace_at(base, change)
    other_schedule = changed.training.interval != base.training.interval
    assert other_schedule or shapes(base) != shapes(changed) or not equal(results(base), results(changed))


def test_the_same_run_gives_the_same_result():
    again = train(jax.tree.map(jnp.asarray, BASE), BASE.task.load(), BASE.training.steps)
    assert equal(results(BASE), jax.tree.leaves(again))


@pytest.mark.slow
def test_one_hot_and_gather_lookups_give_the_same_result():
    assert equal(results(PLAIN), results(on(PLAIN, model__inputs=Tokens(lookup="one-hot"))))


def reachable():
    """Return every concrete public config class of the package that a run can contain."""
    own = {kind for kind in classes_within(Run).values() if kind.__module__.startswith("flaxformer.")}
    return {kind for kind in own if not vars(kind).get("is_abstract", False) and not kind.__name__.startswith("_")}


def test_every_field_of_every_config_is_in_the_table():
    tried = set()
    for base, others in OTHER:
        for path in (p for paths in others for p in ([paths] if isinstance(paths, str) else paths)):
            parent, _, name = path.rpartition(".")
            tried.add((type(get_at(base, parent) if parent else base), name))
    kinds = {kind for kind in reachable() - ELSEWHERE if not kind.__module__.startswith("flaxformer.catalog.")}
    expected = {(kind, field.name) for kind in kinds for field in dataclasses.fields(kind)}
    assert tried | set(BY_DESIGN) == expected
    assert not tried & set(BY_DESIGN)


def test_norm_placements_are_values_of_one_field():
    assert replace_at(BASE, {"model.norm": POST}).model.norm == NormPlacement(post_residual=True)
