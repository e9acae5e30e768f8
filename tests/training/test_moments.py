"""Moments in bfloat16 follow those in float32; optimizer state in host memory changes no bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer.catalog.prodigy import Prodigy
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.core.paths import replace_at
from flaxformer.devices.sharding import Devices
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import SGD, Adafactor, AdamW, Lion, Muon, Run, ScheduleFree, Training, start, train_chunk
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.moments import round_stochastically

STEPS = 60
OPTIMIZERS = {
    "AdamW": AdamW(learning_rate=3e-3, beta2=0.999),
    "SGD": SGD(learning_rate=0.1),
    "Lion": Lion(learning_rate=1e-3),
    "Muon": Muon(learning_rate=3e-3),
    "ScheduleFree": ScheduleFree(learning_rate=3e-3),
    "Adafactor": Adafactor(learning_rate=3e-3, factored_from=2),
}


def run_of(optimizer, **training):
    model = ModelConfig(vocabulary=13, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=7))
    task = Copy(symbols=11, length=3, batch_size=12, evaluation_batches=1)
    return Run(model=model, task=task, optimizer=optimizer, training=Training(steps=STEPS, micro_batches=1, **training))


@functools.cache
def trained(name, dtype):
    run = replace_at(run_of(OPTIMIZERS[name]), {"optimizer.moment_dtype": dtype})
    source = run.task.load()
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(lambda state: train_chunk(state, run, source, STEPS), compiler_options=options)(start(run))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_follow_those_of_float32_moments(name):
    wide, narrow = (np.asarray(trained(name, dtype)[1]["loss"]) for dtype in ("float32", "bfloat16"))
    assert np.abs(narrow - wide).max() < 0.02 * (wide[0] - wide[-1])


@pytest.mark.slow
def test_every_moment_is_stored_in_bfloat16_and_no_weight():
    state = trained("AdamW", "bfloat16")[0]
    nodes = jax.tree.leaves(state.optimizer, is_leaf=lambda node: isinstance(node, Parameters))
    moments = [x for node in nodes if isinstance(node, Parameters) for x in jax.tree.leaves(node)]
    assert len(moments) == 2 * len(jax.tree.leaves(state.params))
    assert {x.dtype for x in moments} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}


def test_weights_that_an_optimizer_keeps_are_not_rounded():
    """Prodigy estimates the distance from the initial weights, which begins far below their rounding."""
    distances = {}
    for dtype in ("float32", "bfloat16"):
        run = run_of(Prodigy(learning_rate=1.0, moment_dtype=dtype))
        state, _ = jax.jit(lambda state, run=run: train_chunk(state, run, run.task.load(), 8))(start(run))
        distances[dtype] = float(optax.tree.get(state.optimizer, "distance"))
    assert distances["float32"] > 1e-5 > run.optimizer.start
    assert distances["bfloat16"] == pytest.approx(distances["float32"], rel=0.05)
    first = jax.tree.leaves(optax.tree.get(state.optimizer, "first"))
    jax.tree.map(np.testing.assert_array_equal, first, jax.tree.leaves(start(run).params))


@pytest.mark.parametrize("value", [1.001, -3.7e-5, 2.0**-130, 0.0, 5.0])
def test_rounding_is_right_on_average(value):
    x = jnp.full((200, 1009), value, jnp.float32)
    found = np.asarray(round_stochastically(x, jnp.uint32(7)).astype(jnp.float32), np.float64)
    low, high = found.min(), found.max()
    assert low <= np.float32(value) <= high
    assert len(np.unique(found)) <= 2
    assert abs(found.mean() - np.float32(value)) <= 4 * (high - low) / 2 / np.sqrt(x.size)


def test_a_slow_mean_decays_in_bfloat16():
    # Rounded to the nearest, 0.999 · v would be v again, at every step.
    v = jnp.full((1009,), 1.0, jnp.bfloat16)
    for step in range(200):
        v = round_stochastically(0.999 * v.astype(jnp.float32), jnp.uint32(step))
    np.testing.assert_allclose(v.astype(jnp.float32).mean(), 0.999**200, rtol=0.01)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3.4e38])
def test_rounding_keeps_what_is_not_finite_and_makes_nothing_infinite_from_nan(special):
    found = round_stochastically(jnp.full(1009, special, jnp.float32), jnp.uint32(1)).astype(jnp.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(special))
    assert np.all(np.sign(found) == np.sign(special)) or np.isnan(special)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [None, Devices(fsdp=2)], ids=str)
def test_state_in_host_memory_changes_no_bit(devices):
    if devices is not None and devices.count > jax.device_count():
        pytest.skip("two devices are wanted")
    states = []
    for is_offloaded in (False, True):
        run = jax.tree.map(jnp.asarray, run_of(AdamW(), offload_optimizer=is_offloaded))
        compiled = CompiledRun(run, DeviceGroup.of(devices), "unrolled")
        state, _ = compiled.advance(compiled.start(run), run, 2)
        states.append(compiled.advance(state, run, 2)[0])
        kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state.optimizer) if x.ndim}
        assert kinds == {"pinned_host" if is_offloaded else "device"}
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_offload_is_refused_in_a_study():
    run = run_of(AdamW(), offload_optimizer=True)
    with pytest.raises(UserError, match=r"training.offload_optimizer is True in a study.*expected False"):
        CompiledRun(run, DeviceGroup.of(None), "unrolled", stack_size=2)
