"""The running mean of the weights: a mean from the first step on, evaluated in place of them, frozen with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, evaluation_params, start, train_step
from flaxformer.training.step import running_mean

EMA = 0.75
RUN = Run(
    model=ModelConfig(vocabulary=7, layers=1, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5)),
    task=Copy(symbols=5, length=2, batch_size=6, evaluation_batches=1),
    optimizer=AdamW(learning_rate=0.1),
    training=Training(steps=4, ema=EMA),
)
SOURCE = RUN.task.load()


@pytest.fixture(scope="module")
def step():
    return jax.jit(lambda state, run: train_step(state, run, SOURCE.batch(jax.random.key(0), state.step))[0])


@pytest.mark.slow
def test_the_average_is_the_mean_of_the_weights_after_each_step_later_ones_counting_more(step):
    state = first = start(RUN)
    history = []
    for t in range(1, 5):
        state = step(state, RUN)
        history.append(state.params.head.matrix)
        shares = EMA ** np.arange(t)[::-1]
        expected = np.tensordot(shares / shares.sum(), np.float64(history), 1)
        np.testing.assert_allclose(state.average.head.matrix, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(first.average.head.matrix, first.params.head.matrix)
    assert evaluation_params(state, RUN) is state.average


@pytest.mark.parametrize("ema", [0.0, 0.75, 0.999, 0.99999])
@pytest.mark.parametrize("how", ["steps", "scan"])
def test_the_average_of_given_weights_is_their_weighted_mean(ema, how):
    """In double precision by its definition; 1 - ema^t computed in float32 is off by 2e-4 at 0.99999."""
    history = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)

    def add(mean, row):
        return running_mean(mean, ema, *row), None

    rows = jnp.arange(12), jnp.asarray(history)
    if how == "scan":
        mean, _ = jax.jit(lambda rows: jax.lax.scan(add, rows[1][0], rows))(rows)
    else:
        mean = rows[1][0]
        for t in range(12):
            mean, _ = add(mean, (rows[0][t], rows[1][t]))
    shares = np.float64(np.float32(ema)) ** np.arange(12)[::-1]
    expected = np.tensordot(shares / shares.sum(), np.float64(history), 1)
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-6)


def test_without_ema_the_trained_weights_are_evaluated():
    run = replace_at(RUN, {"training.ema": None})
    state = start(run)
    assert state.average is None
    assert jax.tree.all(jax.tree.map(lambda x, y: x is y, evaluation_params(state, run), state.params))


def test_a_run_that_diverged_keeps_its_average(step):
    healthy = step(start(RUN), RUN)
    ill = step(healthy.replace(params=jax.tree.map(lambda x: x * jnp.nan, healthy.params)), RUN)
    after = step(ill.replace(params=healthy.params), RUN)
    assert int(after.diverged_at) == 1
    jax.tree.map(np.testing.assert_array_equal, after.average, healthy.average)
