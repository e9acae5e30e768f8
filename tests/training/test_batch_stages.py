"""Batch size by stage: updates of parts of a batch equal a loop over them; costs are those of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer.components import Attention, BatchNorm, Dense
from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices
from flaxformer.study import Axis, Study
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import SGD, AdamW, BatchStage, Constant, Run, Schedule, Training, start, train_chunk
from flaxformer.training.cost import run_cost
from flaxformer.training.loss import loss
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.step import ALIVE

BATCH, STEPS = 12, 4
RUN = Run(
    model=ModelConfig(
        vocabulary=8, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=8), dropout=0.2
    ),
    task=Copy(symbols=7, length=5, batch_size=BATCH),
    optimizer=SGD(learning_rate=0.3, momentum=0.0, clip=None, warmup_steps=0, decay=Constant()),
    training=Training(steps=STEPS),
)


def staged(*stages, run=RUN, **training):
    return run.replace(
        training=run.training.replace(batch_stages=tuple(BatchStage(start=a, size=b) for a, b in stages), **training)
    )


begin, advance = jax.jit(start), jax.jit(train_chunk, static_argnums=3)


def train(run, *chunks):
    arrays, source = jax.tree.map(jnp.asarray, run), run.task.load()
    state, losses = begin(arrays), []
    for steps in chunks or (STEPS,):
        state, metrics = advance(state, arrays, source, steps)
        losses.append(metrics["loss"])
    return state, jnp.concatenate(losses)


def assert_equal(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 0})), one, other)


def test_updates_are_those_of_a_loop_over_parts():
    sizes = [4, 4, 6, 12]
    state, losses = train(staged((0, 4), (2, 6), (3, 12)))
    params, source = start(RUN).params, RUN.task.load()
    expected, of = [], jax.jit(jax.value_and_grad(lambda *arguments: loss(arguments[0], RUN, *arguments[1:])[0]))
    for step, size in enumerate(sizes):
        batch, parts = source.batch(RUN.data_key, step), []
        for j in range(BATCH // size):
            part = jax.tree.map(lambda x: x[j :: BATCH // size], batch)  # noqa: B023 (called at once)
            key = jax.random.fold_in(RUN.dropout_key, step)
            key = key if size == BATCH else jax.random.fold_in(key, j)
            value, gradient = of(params, part, key)
            params = optax.apply_updates(params, jax.tree.map(lambda g: -0.3 * g, gradient))
            parts.append(value)
        expected.append(np.mean(parts))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_equal(state.params, params, rtol=1e-4, atol=1e-6)
    assert state.step == STEPS


def test_steps_before_a_stage_are_those_of_a_run_without_stages():
    whole, plain = staged((3, 4)), RUN
    (staged_state, staged_losses), (state, losses) = train(whole, 3, 1), train(plain, 3, 1)
    np.testing.assert_allclose(staged_losses[:3], losses[:3], rtol=1e-6)
    assert staged_losses[3] != losses[3]
    assert staged_state.step == state.step == STEPS


@pytest.mark.long
def test_chunks_change_no_bit_across_a_stage():
    run = staged((1, 4), (3, 6), ema=0.9)
    assert_equal(train(run, 2, 2), train(run, 2, 1, 1))


def test_the_running_mean_is_over_steps():
    run = staged((0, 4), ema=0.5, run=RUN.replace(optimizer=AdamW(learning_rate=0.01)))
    after = [train(run, *[1] * n)[0] for n in (1, 2, 3)]
    weights = np.array([0.25, 0.5, 1.0]) / 1.75
    expected = jax.tree.map(lambda *x: sum(w * y for w, y in zip(weights, x, strict=True)), *[s.params for s in after])
    assert_equal(after[-1].average, expected, rtol=1e-4, atol=1e-6)


def test_a_diverged_update_stops_the_run_at_its_step():
    run = staged((1, 4), ema=0.5, run=RUN.replace(optimizer=RUN.optimizer.replace(learning_rate=1e38)))
    state, _ = train(run)
    assert state.diverged_at != ALIVE
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.average))
    before, _ = train(run, int(state.diverged_at) + 1)
    assert_equal(state.params, before.params)
    assert_equal(state.average, before.average)


@pytest.mark.long
def test_micro_batches_divide_each_update():
    run = RUN.replace(model=RUN.model.replace(dropout=None))
    stages = ((0, 4), (2, 6))
    one, other = train(staged(*stages, run=run)), train(staged(*stages, run=run, micro_batches=2))
    assert_equal(one[0].params, other[0].params, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_batch_norm_sees_the_batch_of_an_update():
    run = RUN.replace(model=RUN.model.replace(norm_kind=BatchNorm(), dropout=None))
    run = run.replace(optimizer=run.optimizer.replace(learning_rate=1e-30))
    batch, params = run.task.load().batch(run.data_key, 0), start(run).params
    parts = [jax.tree.map(lambda x: x[j::3], batch) for j in range(3)]  # noqa: B023 (called at once)
    of = jax.jit(lambda part: loss(params, run, part, run.dropout_key)[0])
    assert train(staged((0, 4), run=run))[1][0] == pytest.approx(np.mean([of(part) for part in parts]), rel=1e-5)
    assert abs(of(batch) - np.mean([of(part) for part in parts])) > 1e-3


def test_costs_and_tokens_are_those_of_the_whole_batch():
    assert run_cost(staged((0, 4))) == run_cost(RUN)


def test_arms_that_differ_in_the_start_share_a_program():
    study = Study(
        name="stages",
        question="Does a late growth of the batch help?",
        baseline=staged((0, 4), (2, 12)),
        axes=[Axis("training.batch_stages.1.start", {"early": 1, "late": 3}, name="growth")],
        seeds=(0,),
    )
    assert len(groups(study.trials())) == 1


class Watchful(Schedule):
    """Schedule that sees the loss."""

    def fraction(self, progress, ratio):
        return 1 - progress

    def init_state(self):
        return jnp.zeros(())

    def observe(self, state, loss, step):
        return state

    def factor(self, state):
        return 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: staged((2, 4), (1, 6)), r"batch_stages start at \[2, 1\]; expected increasing steps"),
        (lambda: staged((0, 5)), r"training.batch_stages.0.size is 5; expected a divisor of task.batch_size 12"),
        (lambda: staged((0, 3), micro_batches=2), r"size is 3; expected .* a multiple of 2, training.micro_batches"),
        (
            lambda: staged((0, 4), run=RUN.replace(optimizer=AdamW(decay=Watchful()))),
            "optimizer.decay is Watchful, which sees the loss of each step",
        ),
        (lambda: check_batch(staged((0, 3)), Devices(data=2)), r"training.batch_stages.0.size is 3; .* multiple of 2"),
    ],
)
def test_mistakes_are_messages(make, message):
    with pytest.raises(UserError, match=message):
        make()
