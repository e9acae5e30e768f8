"""Training on every kind of task reaches a loss that is impossible without learning the task."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from tasks.every import WORDS, sentences

from flaxformer.components import Attention, Classifier, Dense, LearnedPositions, NoPositions, Patches
from flaxformer.config import ModelConfig
from flaxformer.tasks import (
    Copy,
    Digits,
    Induction,
    ModularAddition,
    PairedFiles,
    Reverse,
    ScaledIndex,
    Sort,
    TextFiles,
    TwoTargetAverage,
)
from flaxformer.training import AdamW, Run, Training, evaluate, start, train_chunk

TINY = ModelConfig(vocabulary=17, layers=1, d_model=32, attention=Attention(heads=2), feed_forward=Dense(d_ff=64))
SIZES = {"batch_size": 32, "evaluation_batches": 4}


@functools.partial(jax.jit, static_argnames="steps")
def trained(run, source, steps):
    state, _ = train_chunk(start(run), run, source, steps)
    return evaluate(state.params, run, source)


def learn(model, task, steps):
    """Return the evaluation after `steps` steps."""
    run = Run(model=model, task=task, optimizer=AdamW(learning_rate=1e-2), training=Training(steps=steps))
    return {name: float(value) for name, value in trained(jax.tree.map(jnp.asarray, run), task.load(), steps).items()}


@pytest.mark.slow
def test_encoder_decoder_learns_to_reverse():
    model = TINY.with_encoder(positions=LearnedPositions(max_length=5))
    found = learn(model, Reverse(symbols=7, length=5, form="paired", **SIZES), steps=200)
    assert found["validation_loss"] < 0.3 * math.log(7)
    assert found["validation_accuracy"] > 0.9


@pytest.mark.slow
def test_prefix_language_model_learns_to_copy():
    found = learn(TINY.replace(layers=2, mask_pattern="prefix"), Copy(symbols=7, length=5, **SIZES), steps=300)
    assert found["validation_loss"] < 0.3 * math.log(7)


def test_digits_are_classified():
    model = TINY.replace(
        inputs=Patches(height=8, width=8, size=2), head=Classifier(classes=10), mask_pattern="bidirectional"
    )
    model = model.replace(positions=LearnedPositions(max_length=16))
    found = learn(model, Digits(**SIZES), steps=300)
    assert found["validation_accuracy"] > 0.8


def vectors(task, **changes):
    """Return a model for a task with vectors."""
    return TINY.replace(inputs=task.inputs, head=task.head, mask_pattern="bidirectional", **changes)


@pytest.mark.slow
def test_sorting_is_learnt():
    assert learn(TINY.replace(layers=2), Sort(symbols=7, length=5, **SIZES), 400)["validation_loss"] < 0.3 * math.log(7)


@pytest.mark.slow
def test_only_models_with_positions_or_a_mask_are_better_than_the_position_blind_reference():
    task = ScaledIndex(**SIZES)
    floor = task.references()["position-blind"]
    blind = vectors(task, positions=NoPositions())
    losses = {
        name: learn(model, task, 500)["validation_loss"]
        for name, model in {
            "blind": blind,
            "positions": vectors(task),
            "mask": blind.replace(mask_pattern="causal", layers=2),
        }.items()
    }
    assert losses["blind"] == pytest.approx(floor, rel=0.08)
    assert losses["positions"] < 0.1 * floor
    assert losses["mask"] < 0.6 * floor


@pytest.mark.slow
def test_two_heads_but_not_one_average_two_targets():
    task = TwoTargetAverage(**SIZES)
    model = vectors(task, positions=NoPositions())
    one, two = (
        learn(model.replace(attention=Attention(heads=heads)), task, 1500)["validation_loss"] for heads in (1, 2)
    )
    assert two < 0.25 * one


@pytest.mark.slow
def test_two_layers_but_not_one_learn_induction():
    task = Induction(symbols=11, length=12, **SIZES)
    model = TINY.replace(feed_forward=None, attention=Attention(heads=4), positions=LearnedPositions(max_length=12))
    one, two = (learn(model.replace(layers=layers), task, 1500)["validation_accuracy"] for layers in (1, 2))
    assert one < 0.5
    assert two > 0.9


@pytest.mark.slow
def test_training_pairs_of_modular_addition_are_memorized():
    task = ModularAddition(modulus=7, fraction=0.8, **SIZES)
    source = task.load()
    run = Run(model=TINY, task=task, optimizer=AdamW(learning_rate=3e-3), training=Training(steps=1000), seed=1)
    state, metrics = jax.jit(train_chunk, static_argnames="steps")(start(run), run, source, steps=1000)
    assert float(metrics["loss"][-20:].mean()) < 0.1 * math.log(7)
    assert int(state.diverged_at) == -1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["paired", "joined"])
def test_pairs_of_lines_are_translated(files, tmp_path, form):
    path = tmp_path / "lines"
    path.write_text("\n".join(sentences(0, lines=1000)))
    task = PairedFiles(
        source_path=str(path),
        target_path=str(path),
        tokenizer=str(files / "one.json"),
        max_length=4,
        form=form,
        validation_tenths=2,
        **SIZES,
    )
    model = TINY.with_encoder() if form == "paired" else TINY.replace(layers=2, mask_pattern="prefix")
    assert learn(model, task, 300)["validation_loss"] < 0.6 * math.log(len(WORDS))


@pytest.mark.slow
def test_tokenised_text_is_learnt(files):
    task = TextFiles(path=str(files / "text.txt"), tokenizer=str(files / "one.json"), length=11, **SIZES)
    assert learn(TINY, task, 100)["validation_loss"] < 0.3 * math.log(9)
