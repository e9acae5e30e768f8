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
