"""Scores of an evaluation: mean loss, standard error over the examples, and the test set by the same program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from study.tiny import BASELINE

from flaxformer.core.paths import replace_at
from flaxformer.tasks import Source
from flaxformer.training import evaluate, start
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.evaluation import score
from flaxformer.training.loss import forward

RUN = replace_at(BASELINE, {"task.batch_size": 5, "task.evaluation_batches": 3})
STATE, SOURCE = start(RUN), RUN.task.load()


def uneven(batches):
    """Batches whose examples have 0, 1 or more scored targets."""
    rng = np.random.default_rng(0)
    return batches.replace(weights=jnp.asarray(rng.integers(0, 2, batches.weights.shape), jnp.float32))


def test_the_standard_error_is_that_of_a_ratio_of_sums_over_examples():
    batches = uneven(SOURCE.evaluation())
    found = jax.jit(score)(STATE.params, RUN, batches)
    sums, counts = [], []
    for i in range(3):
        batch = jax.tree.map(lambda x, i=i: x[i], batches)
        output = jax.jit(forward)(STATE.params, RUN, batch).output
        logs = np.asarray(jax.nn.log_softmax(output), np.float64)
        losses = -np.take_along_axis(logs, np.asarray(batch.targets)[..., None], -1)[..., 0] * batch.weights
        sums += list(losses.sum(-1))
        counts += list(np.asarray(batch.weights).sum(-1))
    sums, counts = np.array(sums), np.array(counts)
    mean, n = sums.sum() / counts.sum(), (counts > 0).sum()
    assert n < 15
    np.testing.assert_allclose(found["loss"], mean, rtol=1e-5)
    error = np.sqrt(n / (n - 1) * ((sums - mean * counts) ** 2).sum()) / counts.sum()
    np.testing.assert_allclose(found["loss_se"], error, rtol=1e-4)


def test_the_standard_error_of_equal_counts_is_that_of_a_mean():
    examples = jax.tree.map(lambda x: x.reshape(15, 1, 1, *x.shape[2:]), SOURCE.evaluation())
    alone = jax.jit(lambda: jax.lax.map(lambda one: score(STATE.params, RUN, one), examples))()
    found = jax.jit(score)(STATE.params, RUN, SOURCE.evaluation())
    np.testing.assert_allclose(found["loss_se"], np.std(alone["loss"], ddof=1) / np.sqrt(15), rtol=1e-3)
    assert np.isnan(alone["loss_se"]).all()  # of a single example


@pytest.fixture(scope="module")
def compiled():
    return CompiledRun(RUN, DeviceGroup.of(None))


def test_the_evaluation_of_a_compiled_run_is_that_of_the_function(compiled):
    run = jax.tree.map(jnp.asarray, RUN)
    state = compiled.start(run)
    plain = jax.jit(evaluate)(state.params, run, SOURCE)
    assert compiled.evaluate(state, run) == plain
    assert {*compiled.evaluate_with_errors(state, run)[1]} == {"validation_loss_se"}


def test_the_test_set_is_scored_by_the_program_of_the_evaluation(compiled):
    run = jax.tree.map(jnp.asarray, RUN)
    state = compiled.start(run)
    found = compiled.test(state, run)
    expected = jax.jit(score)(state.params, run, SOURCE.test())
    assert found == {f"test_{name}": value for name, value in expected.items()}
    assert found["test_loss"] != compiled.evaluate(state, run)["validation_loss"]
    assert sorted(compiled.programs) == ["evaluate", "start"]


class Other(Source):
    """A source whose test set is smaller than its evaluation set."""

    source: Source

    def batch(self, key, step):
        return self.source.batch(key, step)

    def evaluation(self):
        return self.source.evaluation()

    def test(self):
        return jax.tree.map(lambda x: x[:, :2], self.source.test())


def test_a_test_set_of_another_shape_has_a_program_of_its_own(compiled):
    run = jax.tree.map(jnp.asarray, RUN)
    own = CompiledRun(RUN, DeviceGroup.of(None))
    own.data.source = Other(SOURCE)
    state = own.start(run)
    own.evaluate(state, run)
    first = jax.tree.map(lambda x: x[:, :2], SOURCE.test())
    expected = jax.jit(score)(state.params, run, first)["loss"]
    np.testing.assert_allclose(own.test(state, run)["test_loss"], expected, rtol=1e-6)
    assert sorted(own.programs) == ["evaluate", "start", "test"]
    own = CompiledRun(RUN, DeviceGroup.of(None))
    own.data.source = Untested(SOURCE)
    assert own.test(state, run) == {}


class Untested(Other):
    """A source without a test set."""

    def test(self):
        return None
