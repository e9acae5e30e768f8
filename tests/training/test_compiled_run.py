"""The driver of training: one run, a stack of one, and a stack of several give the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import NO_NORM, Attention, Dense, LeCun, TokenMixer
from flaxformer.config import ModelConfig
from flaxformer.core.params import fold_in_name, path_name
from flaxformer.core.weight_specs import Declared, declarations
from flaxformer.devices.sharding import Devices
from flaxformer.model.weights import Transformer, with_layout
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training, compiled_run, compiling
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("stack_size", [None, 2])
@pytest.mark.parametrize("devices", [None, Devices(data=2), Devices(fsdp=2)], ids=str)
@pytest.mark.parametrize("later", [False, True])
def test_compile_compiles_what_training_calls(stack_size, devices, later):
    """The programs are those of the first calls, and later calls find them; `later`, the first evaluation waits."""
    options = {"stack_size": stack_size, "diagnose": lambda state, run, source: state.step}
    group = DeviceGroup.of(devices)
    run = group.device_put(RUN if stack_size is None else stacked(RUNS[:stack_size]))
    compiled, called = (CompiledRun(RUN, group, **options) for _ in range(2))
    compiled.compile(run, 3, evaluations_later=later)
    if later:
        assert {"start", "advance 3"} <= set(compiled.programs)
        compiled.evaluate(compiled.start(run), run)
    programs = dict(compiled.programs)
    assert set(programs) == {"start", "advance 3", "evaluate", "diagnose"}
    for own in (compiled, called):
        state = own.start(run)
        own.evaluate(state, run)
        state, _ = own.advance(state, run, 3)
        np.testing.assert_array_equal(own.diagnose(state, run), 3)
    assert compiled.programs == programs
    assert compiled.bytes == called.bytes > 0
    for name, program in called.programs.items():
        assert programs[name].as_text() == program.as_text(), name
    assert CompiledRun(RUN, DeviceGroup.of(None)).diagnose(state, RUN) is None


class Same(TokenMixer):
    """The update x; it has no weights and no numbers."""

    def apply(self, weights, x, context):
        return x


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("stack_size", [None, 2])
@pytest.mark.parametrize("model", [RUN.model, RUN.model.replace(attention=Same(), norm=NO_NORM)], ids=["norms", "none"])
def test_programs_compiled_beforehand_run_on_their_device(model, stack_size):
    """Also where the compiler sees that an evaluation needs no number of the run, and a task no array."""
    run, device = RUN.replace(model=model), jax.local_devices()[1]
    group = DeviceGroup((device,))
    compiled = CompiledRun(run, group, stack_size=stack_size, diagnose=lambda state, run, source: state.step)
    own = group.device_put(run if stack_size is None else stacked([run.replace(seed=seed) for seed in (0, 1)]))
    compiled.compile(own, 3)
    state = compiled.start(own)
    results = compiled.evaluate(state, own), compiled.test(state, own), compiled.diagnose(state, own)
    state, metrics = compiled.advance(state, own, 3)
    for leaf in jax.tree.leaves((state, metrics, results, compiled.evaluation_params(state, own))):
        assert leaf.devices() == {device}


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_error_of_the_compiler_ends_compile(monkeypatch, number):
    compiling.known_options(compiling.ONCE_ON_CPU)  # compiles a program per option, once
    own, calls = jax.stages.Lowered.compile, []

    def fail(lowered, **options):
        calls.append(lowered)
        if len(calls) == number:
            raise UserError("the program does not fit")
        return own(lowered, **options)

    compiled = CompiledRun(RUN, DeviceGroup.of(None))
    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(UserError, match="the program does not fit"):
        compiled.compile(RUN, 3)
    assert len(compiled.programs) == len(calls) - 1


@pytest.mark.long
def test_an_error_of_an_evaluation_that_is_compiled_later_ends_its_first_call(monkeypatch):
    def fail(state, run):
        raise UserError("the evaluation does not fit")

    compiled = CompiledRun(RUN, DeviceGroup.of(None))
    monkeypatch.setattr(compiled, "_evaluation_calls", lambda state, run: (fail(state, run) for _ in (0,)))
    compiled.compile(RUN, 3, evaluations_later=True)
    state = compiled.start(RUN)
    with pytest.raises(UserError, match="the evaluation does not fit"):
        compiled.evaluate(state, RUN)


def test_replicated_axes_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(compiled_run, "replicated_axes", lambda params, mesh: [f"a weight on {dict(mesh.shape)}"])
    with caplog.at_level("INFO", logger=compiled_run.LOG.name):
        CompiledRun(RUN, DeviceGroup.of(None))
        assert not [record for record in caplog.records if record.name == compiled_run.LOG.name]
        CompiledRun(RUN, DeviceGroup.of(Devices(fsdp=2)))
    messages = [record.message for record in caplog.records if record.name == compiled_run.LOG.name]
    assert messages == ["replicated on the mesh: a weight on {'data': 1, 'fsdp': 2, 'tensor': 1}"]


@jax.jit
def drawn_alone(run):
    """Independent route: each weight from JAX's own normal numbers, with the key of its path."""
    key = fold_in_name(run.init_key, "parameters")

    def draw(path, own):
        spec = own.spec
        if spec.init in ("zeros", "ones", "constant"):
            return jnp.full(spec.shape, {"zeros": 0.0, "ones": 1.0}.get(spec.init, own.value), jnp.float32)
        normal = jax.random.normal(fold_in_name(key, path_name(path)), spec.shape, jnp.float32)
        return run.model.initial_value(spec, own.value).scale * normal

    own = declarations(Transformer, run.model)
    return jax.tree_util.tree_map_with_path(draw, own, is_leaf=lambda node: isinstance(node, Declared))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "devices"), [("unrolled", None), ("scanned", Devices(data=2)), ("unrolled", Devices(fsdp=2))]
)
def test_initial_weights_have_the_bits_of_weights_drawn_alone(layout, devices):
    run = RUN.replace(model=RUN.model.replace(layers=3, initializer=LeCun(gain=0.7)), seed=5)
    params = CompiledRun(run, DeviceGroup.of(devices), layout).start(run).params
    jax.tree.map(np.testing.assert_array_equal, with_layout(params, "unrolled"), drawn_alone(run))


def test_the_program_that_runs_once_compiles_without_unknown_options(monkeypatch):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.float32(1))
    monkeypatch.setattr(compiling, "ONCE_ON_CPU", {"xla_no_such_option": True})
    assert compiling.compile_lowered(lowered, runs_once=True)(jnp.float32(1)) == 2
    others = {"xla_backend_optimization_level": "none"}
    monkeypatch.setattr(compiling, "ONCE_ON_CPU", {"xla_no_such_option": True, **others})
    with pytest.raises(jax.errors.JaxRuntimeError, match="none"):
        compiling.compile_lowered(lowered, runs_once=True)
