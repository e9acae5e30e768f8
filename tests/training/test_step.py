"""The training step: reproducible, honest about divergence, and indifferent to how its work is cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import POST, PRE, Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.model import apply
from flaxformer.nn.losses import cross_entropy
from flaxformer.tasks import AssociativeRecall, Batch, Copy
from flaxformer.training import AdamW, Run, Training, evaluate, start, train_chunk, train_step

RUN = Run(
    model=ModelConfig(
        vocabulary=17, layers=1, d_model=16, attention=Attention(heads=2), feed_forward=Dense(d_ff=32), dropout=0.1
    ),
    task=Copy(symbols=7, length=4, batch_size=8, evaluation_batches=2),
    optimizer=AdamW(learning_rate=1e-2, clip=1.0),
    training=Training(steps=4),
)
SOURCE = RUN.task.load()
chunk = jax.jit(train_chunk, static_argnums=3)
step = jax.jit(train_step)


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_chunks_of_any_length_give_the_same_bits():
    whole, losses = chunk(start(RUN), RUN, SOURCE, 4)
    halves, first = chunk(start(RUN), RUN, SOURCE, 2)
    halves, second = chunk(halves, RUN, SOURCE, 2)
    equal(whole, halves)
    equal(losses["loss"], jnp.concatenate([first["loss"], second["loss"]]))


@pytest.mark.parametrize("rate", [pytest.param(jnp.nan, marks=pytest.mark.slow), 1e30])
def test_a_run_that_diverges_is_frozen_and_says_when(rate):
    bad = RUN.replace(optimizer=RUN.optimizer.replace(learning_rate=jnp.float32(rate)))
    once, _ = chunk(start(bad), bad, SOURCE, 2)
    state, metrics = chunk(once, bad, SOURCE, 2)
    assert 0 < int(state.diverged_at) < 4
    assert int(state.step) == 4
    assert not np.isfinite(np.asarray(metrics["loss"])).all()
    if int(once.diverged_at) >= 0:
        equal((state.params, state.optimizer), (once.params, once.optimizer))


@pytest.mark.slow
def test_a_healthy_run_does_not_say_that_it_diverged():
    assert int(chunk(start(RUN), RUN, SOURCE, 4)[0].diverged_at) == -1


def test_the_loss_is_one_mean_over_all_scored_tokens_however_the_batch_is_split():
    params, batch = start(RUN).params, SOURCE.batch(jax.random.key(5), 0)
    uneven = batch.weights * (jax.random.uniform(jax.random.key(6), batch.weights.shape) < 0.5)

    def parts(params, rows):
        logits = apply(params, RUN.model, batch.inputs[rows])
        return cross_entropy(logits, batch.targets[rows], uneven[rows])

    def mean(params, slices):
        sums = [parts(params, rows) for rows in slices]
        return sum(s for s, _ in sums) / sum(c for _, c in sums)

    gradient = lambda cuts: jax.jit(jax.grad(lambda params: mean(params, cuts)))(params)  # noqa: E731
    whole = gradient([slice(0, 8)])
    for cuts in ([slice(0, 1), slice(1, 8)], [slice(i, i + 2) for i in range(0, 8, 2)]):
        split = gradient(cuts)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6), whole, split)


def test_arms_of_a_study_start_from_bitwise_equal_weights_and_see_equal_batches():
    pre, post = (RUN.replace(model=RUN.model.replace(norm=norm)) for norm in (PRE, POST))
    weights = [
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(start(run).params)}
        for run in (pre, post)
    ]
    shared = weights[0].keys() & weights[1].keys()
    assert any("query" in name for name in shared)
    assert any("tokens" in name for name in shared)
    for name in shared:
        np.testing.assert_array_equal(weights[0][name], weights[1][name])
    assert weights[0].keys() != weights[1].keys()


def test_another_seed_changes_weights_batches_and_dropout():
    other = RUN.replace(seed=1)
    assert not np.array_equal(start(RUN).params.head.matrix, start(other).params.head.matrix)
    assert not np.array_equal(
        chunk(start(RUN), other, SOURCE, 1)[1]["loss"], chunk(start(RUN), RUN, SOURCE, 1)[1]["loss"]
    )


def test_dropout_acts_in_training_and_not_in_evaluation():
    without = RUN.replace(model=RUN.model.replace(dropout=None))
    batch, state = SOURCE.batch(jax.random.key(0), 0), start(RUN)
    assert float(step(state, RUN, batch)[1]["loss"]) != float(step(state, without, batch)[1]["loss"])
    equal(evaluate(state.params, RUN, SOURCE), evaluate(state.params, without, SOURCE))


def test_targets_of_weight_zero_do_not_train():
    batch = SOURCE.batch(jax.random.key(0), 0)
    other = Batch(batch.inputs, jnp.where(batch.weights > 0, batch.targets, 0), batch.weights)
    equal(step(start(RUN), RUN, batch)[0].params, step(start(RUN), RUN, other)[0].params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(Copy(symbols=7, length=4, batch_size=32), marks=pytest.mark.slow),
        AssociativeRecall(pairs=3, queries=2, keys=6, values=6, batch_size=32),
    ],
    ids=["copy", "recall"],
)
def test_the_model_learns_the_synthetic_tasks(task):
    run = RUN.replace(
        task=task,
        model=ModelConfig(
            vocabulary=17, layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)
        ),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=20),
        training=Training(steps=600),
    )
    source = task.load()
    state, _ = chunk(start(run), run, source, 600)
    chance = 1 / 7
    assert float(evaluate(state.params, run, source)["validation_accuracy"]) > 3 * chance
