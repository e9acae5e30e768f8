"""Micro-batches give the gradient of the whole batch, whatever each of them counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.config import Attention, BatchNorm, Dense, ModelConfig
from flaxformer.params import fold_in_name
from flaxformer.struct import UserError, replace_at
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training, start, train_step
from flaxformer.training.step import backward, loss

RUN = Run(
    model=ModelConfig(vocabulary=7, layers=1, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5)),
    task=Copy(symbols=5, length=2, batch_size=6, evaluation_batches=1),
    training=Training(label_smoothing=0.1),
)
STATE, SOURCE = start(RUN), RUN.task.load()


@pytest.fixture(scope="module", autouse=True)
def _compiled_quickly():
    jax.config.update("jax_disable_most_optimizations", True)


def split(run, parts):
    return replace_at(run, {"training.micro_batches": parts})


def uneven():
    """A batch whose examples count 0, 1, 2 … targets, and whose third part counts none."""
    batch = SOURCE.batch(jax.random.key(0), 0)
    length = batch.weights.shape[1]
    weights = (np.arange(length)[::-1] < np.arange(6)[:, None]).astype(np.float32)
    weights[2::3] = 0
    return batch.replace(weights=jnp.asarray(weights * [[1], [1], [1], [0.5], [1], [1]]))


def test_the_gradient_is_that_of_the_whole_batch_however_unequal_the_parts():
    found = jax.jit(lambda batch: [backward(STATE, split(RUN, parts), batch)[:2] for parts in (1, 3)])(uneven())
    (value, gradient), (in_parts, gradient_in_parts) = found
    np.testing.assert_allclose(in_parts, value, rtol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), gradient, gradient_in_parts)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient)) > 0.01


def test_each_micro_batch_draws_its_own_dropout():
    run = replace_at(RUN, {"model.dropout": 0.5})
    one = SOURCE.batch(jax.random.key(0), 0)
    two = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), one)
    key = jax.random.fold_in(fold_in_name(jax.random.key(run.seed), "dropout"), 0)

    @jax.jit
    def values(one, two):
        alone = jax.vmap(lambda index: loss(STATE.params, run, one, jax.random.fold_in(key, index))[0])(jnp.arange(2))
        return backward(STATE, split(run, 2), two)[0], alone

    together, alone = values(one, two)
    np.testing.assert_allclose(together, alone.mean(), rtol=1e-5)
    assert abs(float(alone[0] - alone[1])) > 1e-3


@pytest.mark.slow
def test_a_frozen_weight_stays_the_same_bits():
    run = replace_at(split(RUN, 2), {"model.inputs.frozen": True})
    after, _ = jax.jit(lambda batch: train_step(STATE, run, batch))(uneven())
    np.testing.assert_array_equal(after.params.embedding.tokens, STATE.params.embedding.tokens)
    assert not np.array_equal(after.params.head.matrix, STATE.params.head.matrix)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"training.micro_batches is 4; expected a divisor of task.batch_size 6"):
        split(RUN, 4)
    own = RUN.model.replace(norm_kind=BatchNorm())
    encoder = RUN.model.replace(encoder=own.with_encoder().encoder)
    for model, form in ((own, "joined"), (encoder, "paired")):
        with pytest.raises(UserError, match=r"training.micro_batches is 2 with BatchNorm, .*; expected 1"):
            split(RUN.replace(model=model, task=RUN.task.replace(form=form)), 2)
