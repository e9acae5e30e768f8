"""Every row of every table of formulations against its equation, in values and gradients, over one grid.

Rows for other hardware run on a CPU: traced for their platform, fused kernels interpreted or by plain products.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_kernels import COMPUTE, arrays, masks

from flaxformer.components import Attention, BatchNorm, LanguageModel
from flaxformer.config import ModelConfig
from flaxformer.nn import Causal, Padding, layer_norm
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.formulations import FUNCTIONS, FormulationChoice, chunks, compiling_for, recording, using
from flaxformer.nn.kernels import tokamax
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.linear_recurrence import decayed_products
from flaxformer.system.errors import UserError
from flaxformer.tasks import Induction
from flaxformer.training import Run, Training, cpu
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.compiling import compile_lowered
from flaxformer.training.device_group import DeviceGroup, default_devices
from flaxformer.training.micro_batches import micro_batches

BF16, F32 = jnp.bfloat16, jnp.float32
TABLES = [(name, row) for name, own in FUNCTIONS.items() for row in own.formulations]


def numbers(*shape, dtype=F32, seed=0):
    """Return numbers whose sums of two are exact in bfloat16, so that no order of rounding matters."""
    drawn = np.random.default_rng(seed).normal(scale=2.0, size=shape).clip(-6, 6)
    return jnp.asarray(np.round(8 * drawn) / 8, dtype)


EXPERTS = jnp.array([[0, 0], [1, 3], [3, 1], [1, 0], [3, 3], [0, 1], [1, 3]])
"""Experts of tokens: one that no token has, and one that a token has twice."""
CASES = {
    "norm": [(numbers(3, 5, 8, dtype=dtype), 1e-5, centre, {}) for dtype in (F32, BF16) for centre in (True, False)],
    "cross-entropy": [
        (numbers(*batch, 12, dtype=dtype), jnp.arange(np.prod(batch)).reshape(batch) % 12, {})
        for dtype, batch in itertools.product([F32, BF16], [(7,), (3, 5)])
    ],
    "activation": [
        (ACTIVATIONS[name], numbers(3, 5, 8, dtype=dtype), bias, True, {})
        for name, dtype, bias in itertools.product(ACTIVATIONS, [F32, BF16], [None, numbers(8, seed=1)])
    ],
    "experts": [
        (numbers(*batch, 6, dtype=dtype), numbers(4, 6, 5, dtype=dtype, seed=1), numbers(4, 5, 6, dtype=dtype, seed=2),
         numbers(*batch, 2, seed=3), EXPERTS[: np.prod(batch)].reshape(*batch, 2), {})
        for dtype, batch in itertools.product([F32, BF16], [(7,), (2, 3)])
    ],
    decayed_products.name: [
        (numbers(2, length, 6), numbers(2, length, 6, seed=1), before, total, is_strict, {})
        for length, decay, is_strict in itertools.product([2, 3, 8, 16], [0.1, 9.0], [False, True])
        for logs in [-decay * abs(numbers(2, length, 6, seed=2))]
        for total in [jnp.cumsum(logs, axis=-2)] for before in [total - logs if is_strict else total]
    ],
    "lookup": [(numbers(7, 4, dtype=dtype), jnp.array([[1, 6, 1], [0, 1, 2]]), {}) for dtype in (F32, BF16)],
    "query map": [
        (numbers(2, 3, 8), numbers(8, 2, 4, seed=1), bias, 0.37, {}) for bias in (None, numbers(2, 4, seed=2))
    ],
    "attention": [
        (AttentionCall(*arrays(13, 13, 8, 8, dtype)[:3], masks(13, 13)[mask], None, 0.37), {})
        for mask, dtype in itertools.product(["causal lengths", "packed"], [F32, BF16])
    ],
    "attention to a cache": [
        (numbers(2, 1, 6, 5), numbers(6, 7, 5, seed=1), numbers(6, 7, 4, seed=2),
         {"mask": mask, "bias": bias, "scale": 0.4})
        for mask in (None, Padding(jnp.arange(14).reshape(2, 7) % 5 > 0)) for bias in (None, numbers(2, 6, 1, 7))
    ],
}  # fmt: skip
OF_TRAINING = {"outputs": "chunks", "batch": "micro-batches", "devices": "one per core", "compilation": "fast"}


def is_real(leaf):
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


def results(name, compute, cases):
    """Return the values of all cases, and the gradients of a sum over them with respect to every real array."""
    leaves, structure = jax.tree.flatten(cases)

    def total(floats):
        rest = iter(floats)
        arguments = jax.tree.unflatten(structure, [next(rest) if is_real(leaf) else leaf for leaf in leaves])
        ys = [compute(*case[:-1], **case[-1]) for case in arguments]
        ys = [y[0] * y[1] if name == "query map" else y for y in ys]  # the queries, and the scale that is left
        ys = [y.astype(F32) for y in jax.tree.leaves(ys)]
        return sum((y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum() for y in ys), ys

    found = jax.jit(jax.grad(total, has_aux=True))(list(filter(is_real, leaves)))
    return [np.asarray(x.astype(F32)) for x in jax.tree.leaves(found)]


def widened(case):
    return jax.tree.map(lambda x: x.astype(F32) if isinstance(x, jax.Array) and x.dtype == BF16 else x, case)


def is_of(case, dtype):
    """True if the first real array of a case has this dtype."""
    return next(filter(is_real, jax.tree.leaves(case))).dtype == dtype


def test_every_function_is_in_the_grid():
    assert {*CASES, *OF_TRAINING} == {*FUNCTIONS}


@pytest.mark.every(10, "long")
@pytest.mark.parametrize(("name", "row"), [(name, row) for name, row in TABLES if name in CASES])
def test_rows_equal_their_equation(name, row):
    function, own, checked = FUNCTIONS[name], FUNCTIONS[name].formulations[row], []
    compute = COMPUTE.get(row, own.compute) if name == "attention" else own.compute
    refusal = own.unsupported_reason if row != "tokamax" else tokamax.unmet_condition
    if row == "tokamax":
        pytest.importorskip("tokamax")
    for dtype, tolerance in ((F32, 3e-5), (BF16, 2**-6)):
        with compiling_for(own.platforms[0]):
            taken = [case for case in CASES[name] if is_of(case, dtype) and not refusal(*case[:-1], **case[-1])]
            if (dtype == F32 and row in ("pairs", "narrow")) or not taken:  # made for numbers of 16 bits
                continue
            found = results(name, compute, taken)
        checked.append(dtype)
        for left, right in zip(found, results(name, function.equation, widened(taken)), strict=True):
            np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance * max(1, abs(right).max()))
    assert checked


RUN = Run(
    model=ModelConfig(vocabulary=16, layers=1, d_model=12, attention=Attention(heads=2), head=LanguageModel()),
    task=Induction(symbols=16, length=16, batch_size=8),
    training=Training(steps=2, evaluate_every=2),
)


def trained(formulations, devices=None):
    """Return the losses and the norms of the gradients of two steps, and the formulations that were chosen."""
    compiled = CompiledRun(RUN, DeviceGroup.of(devices, formulations))
    with recording() as choices:
        _, metrics = compiled.advance(compiled.start(RUN), RUN, 2)
    return np.array([metrics["loss"], metrics["gradient_norm"]]), {(own.function, own.formulation) for own in choices}


@pytest.mark.long
def test_rows_of_a_training_step_equal_its_equation(monkeypatch):
    for module, name in ((cpu, "CACHE_BYTES"), (cpu, "MIN_TOKENS"), (chunks, "LARGE"), (cpu, "MIN_BYTES_TO_SHARE")):
        monkeypatch.setattr(module, name, 1)
    plain, choices = trained("reference")
    assert {formulation for _, formulation in choices} == {"reference"}
    fast, choices = trained("auto")
    assert {("outputs", "chunks"), ("batch", "micro-batches")} <= choices
    with using("reference"):
        assert (default_devices(RUN), micro_batches(RUN)) == (None, 1)
    shared, _ = trained("auto", default_devices(RUN))
    np.testing.assert_allclose(fast, plain, rtol=1e-5)
    np.testing.assert_allclose(shared, plain, rtol=1e-5)
    whole = RUN.replace(model=RUN.model.replace(norm_kind=BatchNorm()))
    assert (default_devices(whole), micro_batches(whole)) == (None, 1)  # statistics over the batch


def test_programs_that_are_compiled_fast_have_the_same_bits():
    x = numbers(64, 64)
    lowered = jax.jit(lambda x: jax.nn.softmax(jnp.tanh(x) @ x)).lower(x)
    np.testing.assert_array_equal(*(np.asarray(compile_lowered(lowered, once)(x)) for once in (True, False)))


def test_a_setting_chooses_the_equations_in_a_program_that_was_traced_before():
    x = numbers(3, 8)
    with compiling_for("gpu"):
        norm = jax.jit(layer_norm)

        def chosen():
            with recording() as choices:
                norm.trace(x)
            return [(own.function, own.formulation) for own in choices]

        assert chosen() == [("norm", "short derivative")]
        with using("reference"):
            assert chosen() == [("norm", "reference")]
            query, key, value, _ = arrays(13, 13, 8, 8, BF16)
            assert (
                FUNCTIONS["attention"].choose(AttentionCall(query, key, value, Causal()))
                is FUNCTIONS["attention"].equation
            )
    with pytest.raises(UserError, match='formulations is "fast"; expected "auto" or "reference"'):
        using("fast")


def test_every_row_says_what_it_gains_and_where():
    for name, row in TABLES:
        own = FUNCTIONS[name].formulations[row]
        assert own.gain
        assert {*own.platforms} <= {"cpu", "gpu", "tpu"}
    assert FormulationChoice("norm", "reference", "").reasons == ()
