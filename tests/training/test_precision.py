"""Bfloat16 where it pays, float32 where it counts."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import V, grid, model_and_tokens, sparse_grid
from jaxtyping import Array, Float

from flaxformer.components import (
    GRU,
    LSTM,
    Attention,
    Classifier,
    Dense,
    Elman,
    Inputs,
    LanguageModel,
    Patches,
    Regressor,
    Vectors,
)
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import Parameters, param, path_name
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import static
from flaxformer.model import apply_with_intermediates
from flaxformer.tasks import Copy, Digits, ScaledIndex
from flaxformer.training import Run, Training, start, train_step
from flaxformer.training.loss import loss
from flaxformer.training.precision import cast_params
from flaxformer.training.step import backward

NARROW = jnp.bfloat16
FLOAT32 = ("logits", "weights")
"""What of an attention is float32; all other intermediates are the stream and what it is made of."""


def strong(config):
    """A config as a study's program has it: every number an array, which widens what it meets."""
    return jax.tree.map(jnp.asarray, config)


def dtypes(config, layout):
    """Of the answer and of all intermediates, by place."""
    params, tokens, given = model_and_tokens(config, layout)
    output, kept = jax.eval_shape(
        lambda params, config: apply_with_intermediates(cast_params(params, "bfloat16"), config, tokens,
                                                        dropout_key=jax.random.key(0), **given),
        params, strong(config.replace(dropout=0.1)),
    )  # fmt: skip
    return output.dtype, {path_name(path): leaf.dtype for path, leaf in jax.tree_util.tree_leaves_with_path(kept)}


SMALL = ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=5))
RECURRENT = [recurrent_model(cell, vocabulary=V, layers=2, d_model=6) for cell in (Elman(), GRU(), LSTM())]


def check_dtypes(config, layout):
    answer, places = dtypes(config, layout)
    assert answer == jnp.float32
    for place, dtype in places.items():
        name = place.split("/")[-1]
        if name != "allowed":
            assert dtype == (jnp.float32 if name in FLOAT32 else NARROW), place


@pytest.mark.every(3)
@grid
def test_the_residual_stream_is_bfloat16_and_attention_weights_and_logits_are_float32(config):
    check_dtypes(config, "unrolled")


class HashedTokens(Inputs):
    """A[token mod rows] + B[token // rows]."""

    reads: ClassVar[str] = "tokens"
    rows: int = static(4)

    class Weights(Parameters):
        remainders: Float[Array, "rows d_embedding"] = param(std=1.0, decay=False)
        quotients: Float[Array, "blocks d_embedding"] = param(std=1.0, decay=False)

    def sizes(self, model):
        return {"blocks": -(-model["vocabulary"] // self.rows)}

    def apply(self, weights, inputs, token_types, table, sizes):
        return weights.remainders[inputs % self.rows] + weights.quotients[inputs // self.rows]


def test_the_residual_stream_of_tables_of_other_sizes_than_the_vocabulary_is_bfloat16():
    check_dtypes(SMALL.replace(vocabulary=V, inputs=HashedTokens()), "unrolled")


@pytest.mark.parametrize("config", RECURRENT, ids=lambda config: type(config.attention).__name__)
def test_the_states_of_a_recurrent_model_are_bfloat16(config):
    run = strong(run_of(config))
    state = jax.eval_shape(lambda: start(run, "scanned"))
    batch = jax.eval_shape(lambda: run.task.load().batch(jax.random.key(0), 0))
    kept = jax.eval_shape(lambda state, batch: backward(state, run, batch, return_intermediates=True)[2], state, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept.intermediates)} == {jnp.dtype(NARROW)}
    assert kept.output.dtype == jnp.float32


def run_of(config, precision="bfloat16"):
    form = "paired" if config.encoder else "joined"
    prefix = {"model.mask_pattern": "prefix"} if config.mask_pattern == "prefix" else {}
    task = Copy(symbols=7, length=3, batch_size=4, evaluation_batches=1, form=form)
    return replace_at(Run(model=config, task=task, training=Training(precision=precision)), prefix)


@sparse_grid
def test_weights_gradients_and_the_optimizer_are_float32(config):
    run = strong(run_of(config))
    state = jax.eval_shape(lambda: start(run, "scanned"))
    batch = jax.eval_shape(lambda: run.task.load().batch(jax.random.key(0), 0))
    after, metrics = jax.eval_shape(lambda state, batch: train_step(state, run, batch), state, batch)
    value, gradient, _ = jax.eval_shape(lambda state, batch: backward(state, run, batch), state, batch)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    assert {leaf.dtype for leaf in jax.tree.leaves((value, gradient, metrics))} == {jnp.dtype(jnp.float32)}


@pytest.mark.long
@sparse_grid
def test_the_loss_is_close_to_that_in_float32(config):
    narrow, wide = (run_of(config, precision) for precision in ("bfloat16", "float32"))
    batch, params = wide.task.load().batch(jax.random.key(0), 0), start(wide).params
    found, expected = jax.jit(lambda params: [loss(params, run, batch, None)[0] for run in (narrow, wide)])(params)
    np.testing.assert_allclose(found, expected, rtol=0.03)
    assert float(found) != float(expected)


@pytest.mark.long
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_logits_that_are_not_wide_are_rounded_to_the_precision_of_the_run(precision, tied):
    def output(wide_logits):
        run = run_of(SMALL.replace(vocabulary=V, head=LanguageModel(tied=tied, wide_logits=wide_logits)), precision)
        batch = run.task.load().batch(jax.random.key(0), 0)
        found, gradient, outcome = jax.jit(lambda state: backward(state, run, batch))(start(run))
        assert {leaf.dtype for leaf in jax.tree.leaves((found, gradient, outcome.output))} == {jnp.dtype(jnp.float32)}
        return np.asarray(outcome.output)

    wide, narrow = output(True), output(False)
    np.testing.assert_array_equal(narrow, wide.astype(precision).astype(np.float32))
    assert (narrow == wide).all() == (precision == "float32")


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (SMALL.replace(inputs=Vectors(width=2), head=Regressor(numbers=2)),
         ScaledIndex(length=5, width=2, batch_size=2, evaluation_batches=1)),
        (SMALL.replace(head=Classifier(classes=10), inputs=Patches(height=8, width=8, size=4, class_token=True)),
         Digits(batch_size=2, evaluation_batches=1)),
    ],
    ids=["vectors", "images"],
)  # fmt: skip
def test_vectors_and_images_are_cast_to_bfloat16(model, task):
    run = Run(model=model, task=task, training=Training(precision="bfloat16"))
    kept = jax.eval_shape(
        lambda: backward(start(run), run, task.load().batch(jax.random.key(0), 0), return_intermediates=True)[2]
    )
    assert (kept.intermediates.embedded.dtype, kept.output.dtype) == (NARROW, jnp.float32)


def test_sums_over_many_tokens_are_taken_in_float32():
    """In bfloat16, a sum of ones stops at 256."""
    run = run_of(ModelConfig(vocabulary=8, layers=0, d_model=4, attention=Attention(heads=1)))
    batch = run.task.load().batch(jax.random.key(0), 0)
    many = dataclasses.replace(
        batch,
        inputs=jnp.zeros((64, 32), jnp.int32),
        targets=jnp.zeros((64, 32), jnp.int32),
        weights=jnp.ones((64, 32)),
    )
    state = start(run)
    gradients = jax.jit(
        lambda state: [backward(state, replace_at(run, {"training.precision": p}), many)[1]
                       for p in ("bfloat16", "float32")]
    )(state)  # fmt: skip
    narrow, wide = (np.asarray(gradient.embedding.tokens[0]) for gradient in gradients)
    np.testing.assert_allclose(narrow, wide, rtol=0.02, atol=0.01 * np.abs(wide).max())


def test_weights_that_are_not_trained_keep_their_bits():
    run = replace_at(
        run_of(ModelConfig(vocabulary=8, layers=0, d_model=4, attention=Attention(heads=1))),
        {"model.inputs.frozen": True},
    )
    state = start(run)
    after, _ = jax.jit(lambda state: train_step(state, run, run.task.load().batch(jax.random.key(0), 0)))(state)
    np.testing.assert_array_equal(after.params.embedding.tokens, state.params.embedding.tokens)
