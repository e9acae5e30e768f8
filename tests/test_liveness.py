"""Every config field does something: changing it changes the parameters, the loss, the update or the data."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.config import (
    POST,
    LayerNorm,
    LearnedPositions,
    LeCun,
    ModelConfig,
    NoPositions,
    Normal,
    NormSlots,
    RMSNorm,
    Sinusoidal,
    Xavier,
)
from flaxformer.struct import Config, alternatives, replace_at, type_hints
from flaxformer.tasks import AssociativeRecall, Copy, StandardLibrary, TextFiles
from flaxformer.training import AdamW, Run, Training, evaluate, start, train_chunk

TASK = Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2)
MODEL = ModelConfig(vocabulary=7, layers=1, d_model=8, heads=2, d_ff=11, window=2, logit_cap=3.0, dropout=0.1)
OPTIMIZER = AdamW(warmup_steps=1.0, final_fraction=0.1, weight_decay=0.1, clip=0.5, learning_rate=0.1)
BASE = Run(model=MODEL, task=TASK, optimizer=OPTIMIZER, training=Training(steps=4, label_smoothing=0.1))

# One other value for every field of every config that a run can hold.
OTHER = {
    "seed": 1,
    "model.vocabulary": 9,
    "model.layers": 2,
    "model.d_model": 12,
    "model.heads": 4,
    "model.key_value_heads": 1,
    "model.d_head": 3,
    "model.d_value": 3,
    "model.d_ff": 13,
    "model.norm.pre": False,
    "model.norm.post": True,
    "model.norm.stream": True,
    "model.norm.final": False,
    "model.norm_kind": RMSNorm(),
    "model.norm_kind.affine": "none",
    "model.norm_kind.epsilon": 0.1,
    "model.positions": LearnedPositions(max_length=6),
    "model.positions.base": 10.0,
    "model.activation": "gelu",
    "model.causal": False,
    "model.window": 3,
    "model.logit_scale_exponent": 1.0,
    "model.logit_scale_width": "model",
    "model.logit_cap": None,
    "model.attention_bias": False,
    "model.feed_forward_bias": False,
    "model.tied_head": True,
    "model.head_bias": True,
    "model.initializer": LeCun(),
    "model.initializer.gain": 0.5,
    "model.embedding_std": 0.5,
    "model.dropout": 0.5,
    "task": AssociativeRecall(pairs=2, queries=1, keys=3, values=3, batch_size=2, evaluation_batches=2),
    "task.batch_size": 3,
    "task.evaluation_batches": 3,
    "task.symbols": 4,
    "task.length": 2,
    "optimizer.learning_rate": 0.01,
    "optimizer.warmup_steps": 3.0,
    "optimizer.decay": "cosine",
    "optimizer.final_fraction": 0.9,
    "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.5,
    "optimizer.epsilon": 0.1,
    "optimizer.weight_decay": 1.0,
    "optimizer.clip": 0.01,
    "training.steps": 3,
    "training.evaluate_every": 2,
    "training.label_smoothing": 0.5,
}
# Fields of the other classes that a part may be: the base that holds them, and the field's other value.
ALTERNATIVES = {
    RMSNorm: (("model.norm_kind", RMSNorm()), {"affine": "none", "epsilon": 0.1}),
    LearnedPositions: (("model.positions", LearnedPositions(max_length=6)), {"max_length": 7, "std": 1.0}),
    LeCun: (("model.initializer", LeCun()), {"gain": 0.5}),
    Normal: (("model.initializer", Normal()), {"deviation": 0.5}),
    AssociativeRecall: (
        ("task", OTHER["task"]),
        {"pairs": 1, "queries": 2, "keys": 4, "values": 2, "batch_size": 3, "evaluation_batches": 3},
    ),
}
CASES = [pytest.param(BASE, path, value, id=path) for path, value in OTHER.items()] + [
    pytest.param(replace_at(BASE, {path: base}), f"{path}.{name}", value, id=f"{kind.__name__}.{name}")
    for kind, ((path, base), values) in ALTERNATIVES.items()
    for name, value in values.items()
]


def shapes(run):
    """The shapes of the parameters and of the evaluation data: what changes these needs no training to show."""
    return jax.tree.map(
        lambda leaf: leaf.shape, jax.eval_shape(lambda: (start(run).params, run.task.load().evaluation()))
    )


@functools.partial(jax.jit, static_argnames="steps")
def train(run, source, steps):
    state, metrics = train_chunk(start(run), run, source, steps)
    return metrics["loss"], state.params, evaluate(state.params, run, source)


def results(run):
    """All numbers that a run produces: losses, final parameters, evaluation."""
    return jax.tree.leaves(train(jax.tree.map(jnp.asarray, run), run.task.load(), run.training.steps))


def equal(one, other):
    return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("base", "path", "value"), CASES)
def test_every_field_changes_the_result(base, path, value):
    changed = replace_at(base, {path: value})
    other_schedule = changed.training.interval != base.training.interval
    assert other_schedule or shapes(base) != shapes(changed) or not equal(results(base), results(changed))


def test_the_same_run_gives_the_same_result():
    assert equal(results(BASE), results(BASE.replace(seed=0)))


def test_the_table_has_every_field():
    def fields(config, prefix):
        for field in dataclasses.fields(config):
            path, value = f"{prefix}{field.name}", getattr(config, field.name)
            if not (isinstance(value, Config) and path in ("model", "optimizer", "training", "model.norm")):
                yield path
            if isinstance(value, Config):
                yield from fields(value, f"{path}.")

    assert set(fields(BASE, "")) == set(OTHER)
    parts = [type_hints(ModelConfig)[name] for name in ("norm_kind", "positions", "initializer")] + [
        type_hints(Run)["task"]
    ]
    elsewhere = {StandardLibrary, TextFiles}  # their fields are tested with the text tasks
    base = {LayerNorm, Sinusoidal, NoPositions, Xavier, Copy}
    assert {kind for hint in parts for kind in alternatives(hint)} == base | set(ALTERNATIVES) | elsewhere
    for kind, (_, values) in ALTERNATIVES.items():
        assert {field.name for field in dataclasses.fields(kind)} == set(values)


def test_norm_placements_are_values_of_one_field():
    assert replace_at(BASE, {"model.norm": POST}).model.norm == NormSlots(stream=True)
