"""Micro-batches give the gradient of the whole batch, whatever each of them counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, BatchNorm, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.model import apply
from flaxformer.nn.formulations import chunks
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import LossTerm, Run, Training, ZLoss, start, train_step
from flaxformer.training.loss import summed_loss
from flaxformer.training.step import backward

RUN = Run(
    model=ModelConfig(vocabulary=7, layers=1, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5)),
    task=Copy(symbols=5, length=2, batch_size=6, evaluation_batches=1),
    training=Training(label_smoothing=0.1),
)
STATE, SOURCE = start(RUN), RUN.task.load()


def split(run, parts):
    return replace_at(run, {"training.micro_batches": parts})


def uneven():
    """A batch whose examples count 0, 1, 2 … targets, and whose third part counts none."""
    batch = SOURCE.batch(jax.random.key(0), 0)
    length = batch.weights.shape[1]
    weights = (np.arange(length)[::-1] < np.arange(6)[:, None]).astype(np.float32)
    weights[2::3] = 0
    return batch.replace(weights=jnp.asarray(weights * [[1], [1], [1], [0.5], [1], [1]]))


@pytest.mark.long
def test_the_gradient_is_that_of_the_whole_batch_however_unequal_the_parts():
    found = jax.jit(lambda batch: [backward(STATE, split(RUN, parts), batch)[:2] for parts in (1, 3)])(uneven())
    (value, gradient), (in_parts, gradient_in_parts) = found
    np.testing.assert_allclose(in_parts, value, rtol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), gradient, gradient_in_parts)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient)) > 0.01


def gradient_in(run, parts, batch):
    state = start(run)
    return jax.jit(lambda: backward(state, split(run, parts), batch)[:2])()


@pytest.mark.long
@pytest.mark.every(6)
@pytest.mark.parametrize("d_model", [6, 10])
@pytest.mark.parametrize("form", ["joined", "paired"])
def test_dropout_is_the_same_in_any_number_of_micro_batches(form, d_model):
    model = RUN.model.replace(dropout=0.5, d_model=d_model)
    model = model if form == "joined" else model.with_encoder()
    run = RUN.replace(model=model, task=RUN.task.replace(form=form))
    batch = run.task.load().batch(jax.random.key(0), 0)
    whole = gradient_in(run, 1, batch)
    for parts in (2, 3, 6):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), whole, gradient_in(run, parts, batch)
        )


def test_examples_of_a_batch_have_different_dropout():
    run = replace_at(RUN, {"model.dropout": 0.5})
    one = jax.tree.map(lambda x: x[:1], SOURCE.batch(jax.random.key(0), 0))
    same = jax.tree.map(lambda x: jnp.repeat(x, 6, axis=0), one)
    key = jax.random.fold_in(run.dropout_key, 0)
    of_row = jax.jit(lambda row: summed_loss(STATE.params, run, one, key, rows=row[None])[0])
    alone = [of_row(jnp.int32(row)) for row in range(6)]
    assert len({float(value) for value in alone}) > 3
    whole = jax.jit(lambda: summed_loss(STATE.params, run, same, key)[0])()
    np.testing.assert_allclose(whole, sum(alone), rtol=1e-5)


@pytest.mark.slow
def test_dropout_is_the_same_in_micro_batches_of_a_batch_in_buckets():
    run = replace_at(RUN, {"model.dropout": 0.5})
    batch = SOURCE.batch(jax.random.key(0), 0)
    buckets = (batch, jax.tree.map(lambda x: x[:, :2] if x.ndim > 1 else x, batch))
    one, other = (gradient_in(run, parts, buckets) for parts in (1, 3))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), one, other)


class Noisy(Dense):
    """A feed-forward network with dropout of its own."""

    def apply(self, weights, x, context):
        return super().apply(weights, context.dropout(0.5, x), context)


class Jittered(Dense):
    """A feed-forward network whose inputs are scaled by random numbers of its own."""

    def apply(self, weights, x, context):
        scale = 1.0 if context.key is None else jax.random.uniform(context.key, x.shape)
        return super().apply(weights, x * scale, context)


@pytest.mark.long
def test_a_component_drops_the_same_entries_in_any_number_of_micro_batches():
    run = RUN.replace(model=RUN.model.replace(feed_forward=Noisy(d_ff=5)))
    batch = SOURCE.batch(jax.random.key(0), 0)
    whole, plain = gradient_in(run, 1, batch), gradient_in(RUN, 1, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), whole, gradient_in(run, 3, batch))
    assert abs(float(whole[0] - plain[0])) > 1e-4


@pytest.mark.slow
def test_micro_batches_have_different_random_keys():
    run = RUN.replace(model=RUN.model.replace(feed_forward=Jittered(d_ff=5)))
    key = jax.random.key(0)
    one = jax.tree.map(lambda x: x[:1], SOURCE.batch(key, 0))
    values = [summed_loss(STATE.params, run, one, key, rows=jnp.array([row]))[0] for row in (0, 1)]
    assert abs(float(values[0] - values[1])) > 1e-5


@pytest.mark.slow
def test_a_frozen_weight_stays_the_same_bits():
    run = replace_at(split(RUN, 2), {"model.inputs.frozen": True})
    state = start(run)
    after, _ = jax.jit(lambda state, batch: train_step(state, run, batch))(state, uneven())
    np.testing.assert_array_equal(after.params.embedding.tokens, state.params.embedding.tokens)
    assert not np.array_equal(after.params.head.matrix, state.params.head.matrix)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"training.micro_batches is 4; expected a divisor of task.batch_size 6"):
        split(RUN, 4)
    own = RUN.model.replace(norm_kind=BatchNorm())
    encoder = RUN.model.replace(encoder=own.with_encoder().encoder)
    for model, form in ((own, "joined"), (encoder, "paired")):
        with pytest.raises(UserError, match=r"training.micro_batches is 2 with BatchNorm, .*; expected 1"):
            split(RUN.replace(model=model, task=RUN.task.replace(form=form)), 2)


class RowTerm(LossTerm):
    """Mean over the rows with a scored target, whatever their number of targets, of the largest squared logit."""

    def value(self, params, outcome, batch):
        is_scored = (batch.weights > 0).any(-1)
        rows = jnp.where(is_scored, jnp.square(outcome.output).max((-1, -2)), 0)
        return rows.sum(), is_scored.sum().astype(jnp.float32)


TERMS = {"none": (), "by rows": (ZLoss(weight=0.3), RowTerm(weight=0.2))}


def expected_loss(batch, terms):
    """Weighted means in float64, from the model's logits: cross-entropy with smoothing 0.1, z-loss, term of rows."""
    z, w = np.asarray(apply(STATE.params, RUN.model, batch.inputs), np.float64), np.asarray(batch.weights, np.float64)
    normaliser = np.log(np.exp(z).sum(-1))
    at_target = np.take_along_axis(z, np.asarray(batch.targets)[..., None], -1)[..., 0]
    value = ((0.9 * (normaliser - at_target) + 0.1 * (normaliser - z.mean(-1))) * w).sum() / w.sum()
    value += 0.3 * (normaliser**2 * w).sum() / w.sum() if terms != "none" else 0
    return value + (0.2 * (z**2).max((1, 2))[(w > 0).any(1)].mean() if terms == "by rows" else 0)


@pytest.mark.long
@pytest.mark.parametrize(("terms", "in_chunks"), [("none", False), ("by rows", False), ("by rows", True)])
def test_the_loss_is_a_weighted_mean_for_every_scale_of_the_weights_and_every_division(terms, in_chunks, monkeypatch):
    if in_chunks:
        monkeypatch.setattr(chunks, "LARGE", 20)
    run, batch, expected = RUN.replace(loss_terms=TERMS[terms]), uneven(), expected_loss(uneven(), terms)
    first = None
    for parts in (1, 2, 6):
        of_batch = jax.jit(lambda batch, parts=parts: backward(STATE, split(run, parts), batch)[:2])
        for scale in (1.0, 0.1, 1e-6):
            value, gradient = of_batch(batch.replace(weights=batch.weights * scale))
            first = first or gradient
            np.testing.assert_allclose(value, expected, rtol=2e-6)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-6), first, gradient)


@pytest.mark.long
def test_buckets_with_fractional_weights_have_the_loss_of_the_whole_batch():
    run, batch = RUN.replace(loss_terms=TERMS["by rows"]), uneven()
    batch = batch.replace(weights=0.01 * batch.weights)
    buckets = tuple(jax.tree.map(lambda x, at=at: x[at], batch) for at in (slice(0, 3), slice(3, 6)))
    value, _, _ = jax.jit(lambda: backward(STATE, split(run, 3), buckets))()
    np.testing.assert_allclose(value, expected_loss(batch, "by rows"), rtol=2e-6)


def test_a_batch_without_scored_targets_has_loss_and_gradient_0():
    batch = uneven().replace(weights=jnp.zeros_like(uneven().weights))
    run = RUN.replace(loss_terms=TERMS["by rows"])
    value, gradient, _ = jax.jit(lambda: backward(STATE, split(run, 3), batch))()
    assert not any(np.any(x) for x in jax.tree.leaves((value, gradient)))
