"""The driver of training: one run, a stack of one, and a stack of several give the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.config import Attention, Dense, ModelConfig
from flaxformer.sharding import Devices
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training, compiled_run
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup

RUN = Run(  # without biases of attention: the gradient of a key bias is rounding alone, which Adam rescales
    model=ModelConfig(
        vocabulary=6,
        layers=1,
        d_model=8,
        attention=Attention(heads=2, bias=False),
        feed_forward=Dense(d_ff=11),
    ),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    training=Training(steps=6),
)
RUNS = [RUN.replace(seed=seed) for seed in range(3)]


def stacked(runs):
    return jax.tree.map(lambda *leaves: jnp.asarray(leaves, type(leaves[0])), *runs)


def trained(run, stack_size, chunks=(2, 4)):
    """Losses, metrics after training, the weights to evaluate, and the driver."""
    compiled = CompiledRun(RUN, DeviceGroup.of(None), stack_size=stack_size)
    state, losses = compiled.start(run), []
    for steps in chunks:
        state, metrics = compiled.advance(state, run, steps)
        losses.append(metrics["loss"])
    numbers = (jnp.concatenate(losses, -1), compiled.evaluate(state, run), compiled.evaluation_params(state, run))
    return jax.device_get(numbers), compiled


def test_a_stack_of_one_has_the_bits_of_the_run_alone():
    alone, compiled = trained(RUN, None)
    stack, _ = trained(stacked([RUN]), 1, chunks=(3, 3))
    jax.tree.map(lambda own, other: np.testing.assert_array_equal(own, other[0]), alone, stack)
    assert set(compiled.programs) == {"start", "advance 2", "advance 4", "evaluate", "evaluation_params"}
    assert compiled.bytes > 0


@pytest.mark.slow
def test_runs_of_a_stack_are_those_trained_alone_up_to_rounding():
    stack, _ = trained(stacked(RUNS), 3)
    for i, run in enumerate(RUNS):
        alone, _ = trained(run, None)
        for own, other in zip(jax.tree.leaves(alone), jax.tree.leaves(stack), strict=True):
            np.testing.assert_allclose(own, other[i], rtol=1e-4, atol=1e-6)


def test_compile_compiles_what_training_calls():
    compiled = CompiledRun(RUN, DeviceGroup.of(None), diagnose=lambda state, run, source: state.step)
    compiled.compile(RUN, 3)
    assert set(compiled.programs) == {"start", "advance 3", "evaluate", "diagnose"}
    state, _ = compiled.advance(compiled.start(RUN), RUN, 3)
    assert compiled.diagnose(state, RUN) == 3
    assert CompiledRun(RUN, DeviceGroup.of(None)).diagnose(state, RUN) is None


def test_replicated_axes_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(compiled_run, "replicated_axes", lambda params, mesh: [f"a weight on {dict(mesh.shape)}"])
    with caplog.at_level("INFO"):
        CompiledRun(RUN, DeviceGroup.of(None))
        assert caplog.messages == []
        CompiledRun(RUN, DeviceGroup.of(Devices(fsdp=2)))
    assert caplog.messages == ["replicated on the mesh: a weight on {'data': 1, 'fsdp': 2, 'tensor': 1}"]
