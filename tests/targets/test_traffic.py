"""Traffic of the kernels of compiled programs: against what each function must read and write."""

# ruff: noqa: E501  # lines of programs

import jax
import jax.numpy as jnp
import pytest

from flaxformer.components import Attention, Dense, LanguageModel
from flaxformer.config import ModelConfig
from flaxformer.targets.traffic import PARTS, kernels_of, traffic_by_part
from flaxformer.tasks import Copy
from flaxformer.training import Run, start, train_step

N, ROW = 2**16, 2**10
X = jax.ShapeDtypeStruct((N // ROW, ROW), jnp.float32)
ONE, INDEX = jax.ShapeDtypeStruct((1, ROW), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)


def last_row_changed(x, row):
    return jax.lax.fori_loop(0, 7, lambda i, x: jax.lax.dynamic_update_slice_in_dim(x, row + i, 3, 0), x)


FUNCTIONS = {
    "elementwise": (lambda x: 2 * jnp.tanh(x) + 1, (X,), 2 * N),
    "product": (lambda x, y: x @ y.T, (X, X), 2 * N + (N // ROW) ** 2),
    "sum": (lambda x: x.sum(), (X,), N),
    "one row": (lambda x, i: 2 * x[i], (X, INDEX), 2 * ROW),
    "rows by ids": (lambda x: jnp.sin(x[jnp.arange(3) ** 2]), (X,), 6 * ROW),
    "loop over rows": (lambda x: jax.lax.map(lambda row: 2 * jnp.tanh(row) + 1, x), (X,), 3 * N),
    "update in place": (last_row_changed, (X, ONE), 2 * N + 7 * 2 * ROW),
}
"""Functions, their arguments, and the numbers that they read and write; a loop writes zeros to its result first."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_traffic_is_what_a_function_must_read_and_write(name):
    function, arguments, numbers = FUNCTIONS[name]
    text = jax.jit(function).lower(*arguments).compile().as_text()
    found = sum(kernel.bytes for kernel in kernels_of(text)) / 4
    assert 0.99 * numbers <= found <= 1.05 * numbers + 100


PROGRAM = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused_scatter (table: f32[1000,8], ids: s32[5,1], rows: bf16[5,8]) -> f32[1000,8] {
  %table = f32[1000,8]{1,0} parameter(0)
  %ids = s32[5,1]{1,0} parameter(1)
  %rows = bf16[5,8]{1,0} parameter(2)
  %wide = f32[5,8]{1,0} convert(%rows)
  ROOT %scatter.1 = f32[1000,8]{1,0} scatter(%table, %ids, %wide), to_apply=%add
}

%fused_gather (logits: bf16[6,100], ids: s32[6,1]) -> f32[6] {
  %logits = bf16[6,100]{1,0} parameter(0)
  %ids.1 = s32[6,1]{1,0} parameter(1)
  %flat = bf16[600]{0} bitcast(%logits)
  %wide.1 = f32[600]{0} convert(%flat)
  ROOT %gather.1 = f32[6]{0} gather(%wide.1, %ids.1), slice_sizes={1}
}

%async_computation (whole: bf16[2,64]) -> bf16[1,64] {
  %whole = bf16[2,64]{1,0} parameter(0)
  ROOT %half = bf16[1,64]{1,0} slice(%whole), slice={[0:1], [0:64]}
}

%body (carry: (s32[], f32[64,2])) -> (s32[], f32[64,2]) {
  %carry = (s32[], /*index=1*/f32[64,2]{1,0:T(8,128)}) parameter(0)
  ROOT %twice = f32[64,2]{1,0:T(8,128)} multiply(%carry#1, %carry#1), metadata={op_name="jit(step)/transpose(jvp(block_0))/feed_forward/mul"}
}

ENTRY %main (p: f32[1000,8]) -> f32[10] {
  %p = f32[1000,8]{1,0} parameter(0)
  %q = (s32[5,1]{1,0}, bf16[5,8]{1,0}, bf16[2,64]{1,0}, bf16[6,100]{1,0}) parameter(1)
  %fusion.scatter = f32[1000,8]{1,0} fusion(%p, %q#0, %q#1), kind=kInput, calls=%fused_scatter, metadata={op_name="jit(step)/jvp(embedding)/scatter-add"}
  %fusion.gather = f32[6]{0} fusion(%q#3, %q#0), kind=kLoop, calls=%fused_gather, metadata={op_name="jit(step)/loss/jit(take_along_axis)/gather"}
  %start = ((bf16[2,64]{1,0}), bf16[1,64]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) async-start(%q#2), calls=%async_computation
  %done = bf16[1,64]{1,0:T(8,128)(2,1)S(1)} async-done(%start)
  %read = bf16[1,64]{1,0:T(8,128)(2,1)S(1)} negate(%done), metadata={op_name="jit(step)/jvp(block_0)/attention/neg"}
  %moved = (f32[1000,8]{1,0:T(8,128)S(1)}, f32[1000,8]{1,0}, u32[]{:S(2)}) copy-start(%p)
  %loop = (s32[], f32[64,2]{1,0}) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  ROOT %far = f32[1000,8]{1,0:S(5)} copy(%fusion.scatter)
}
"""


def test_kernels_of_gpus_and_tpus_in_the_form_of_their_programs():
    found = {kernel.name: (kernel.read, kernel.written, kernel.runs, kernel.part) for kernel in kernels_of(PROGRAM)}
    assert found == {
        "fusion.scatter": (5 * 4 + 5 * 8 * 2, 2 * 5 * 8 * 4, 1, "embedding"),
        "fusion.gather": (6 * 2 + 5 * 4, 6 * 4, 1, "loss"),
        "start": (64 * 2, 0, 1, "attention"),
        "read": (0, 0, 1, "attention"),
        "moved": (8000 * 4, 0, 1, "other"),
        "twice": (2 * 128 * 4, 128 * 4, 12, "feed_forward"),
        "far": (8000 * 4, 0, 1, "other"),
    }


def test_kernels_with_most_traffic_come_first_and_parts_have_all_of_it():
    kernels = kernels_of(PROGRAM)
    assert [kernel.bytes for kernel in kernels] == sorted((kernel.bytes for kernel in kernels), reverse=True)
    assert sum(traffic_by_part(kernels).values()) == sum(kernel.bytes for kernel in kernels)


@pytest.mark.long
def test_every_part_of_a_training_step_has_traffic():
    model = ModelConfig(
        vocabulary=9, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(), head=LanguageModel()
    )
    run = Run(model=model, task=Copy(symbols=7, length=3, batch_size=4))
    batch = run.task.load().batch(jax.random.key(0), 0)
    text = jax.jit(lambda state: train_step(state, run, batch)).lower(start(run)).compile().as_text()
    assert set(PARTS) - {"cross_attention"} <= set(traffic_by_part(kernels_of(text)))
