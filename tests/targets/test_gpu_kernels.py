"""Kernels of a training step compiled for a GPU: what `experiments/benchmarks/README.md` found faster.

`pytest -m compile` with the extra `cuda`.
"""

import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from flaxformer.components import Attention, Dense, LanguageModel, LayerNorm
from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import chunks, queries
from flaxformer.targets.program import Placement, compile_step
from flaxformer.targets.topology import PACKAGES, parse_target
from flaxformer.tasks import StandardLibrary
from flaxformer.training import Run, Training

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
try:
    import formulations
finally:
    sys.path.pop(0)

pytestmark = pytest.mark.compile

LAYERS, D, B, T = 2, 256, 32, 1024


@functools.cache
def step(bias=False, precision="bfloat16", target="h200", mesh=None, activation="gelu"):
    """Return the compiled step of a model whose hidden arrays are large."""
    if importlib.util.find_spec(PACKAGES["gpu"][0]) is None:
        pytest.skip("no compiler for GPUs")
    model = ModelConfig(
        layers=LAYERS,
        d_model=D,
        vocabulary=256,
        attention=Attention(heads=4, bias=bias, out_bias=bias),
        feed_forward=Dense(activation=activation, bias=bias),
        norm_kind=LayerNorm(),
        head=LanguageModel(tied=True, wide_logits=False),
    )
    run = Run(
        model=model,
        task=StandardLibrary(length=T, batch_size=B),
        training=Training(steps=1, precision=precision),
    )
    return compile_step(run, Placement.of(parse_target(target), mesh), "unrolled")


def traffic(program, part):
    return sum(kernel.bytes for kernel in program.kernels if kernel.part == part)


def in_pairs(program, columns):
    """Return the number of kernels whose result are pairs of elements in rows of this length."""
    return len(re.findall(rf"= u32\[[\d,]*{columns // 2}\]\S* fusion\(", program.text))


@pytest.mark.parametrize("bias", [False, True])
def test_activations_are_computed_by_pairs(bias):
    assert in_pairs(step(bias), 4 * D) == 2 * LAYERS  # forward and backward


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "tanh"])
def test_no_part_of_an_activation_is_stored(activation):
    relu = step(bias=True, activation="relu").memory.activations
    assert step(bias=True, activation=activation).memory.activations < relu + B * T * 4 * D


def test_activations_in_float32_are_not():
    assert in_pairs(step(precision="float32"), 4 * D) == 0


def test_a_loss_in_chunks_is_computed_by_pairs(monkeypatch):
    whole = step()
    monkeypatch.setattr(chunks, "LARGE", B * T * 128)
    assert (in_pairs(whole, 256), in_pairs(step.__wrapped__(), 256)) == (0, 1)


def test_devices_along_tensor_keep_their_part_of_the_pairs():
    program = step(target="h200x2", mesh=Devices(tensor=2))
    assert in_pairs(program, 2 * D) == 2 * LAYERS
    assert not [one for one in program.collectives if one.bytes >= B * T * 4 * D * 2]


def test_attention_is_one_fused_kernel_forward_and_one_backward_per_layer():
    calls = re.findall(r'custom_call_target="__cudnn\$fmhaSoftmax(Backward)?"', step().text)
    assert sorted(calls) == [""] * LAYERS + ["Backward"] * LAYERS


def test_products_of_one_operand_are_not_merged():
    assert not re.search(rf"bf16\[{B * T},({2 * D}|{3 * D})\]", step().text)


def test_the_scale_costs_no_pass_over_the_queries(monkeypatch):
    in_map = traffic(step(), "attention")
    monkeypatch.delitem(queries.FORMULATIONS, "scale in the map")
    of_queries = 2 * B * T * D
    # They would be read and written, forward and backward.
    assert traffic(step.__wrapped__(), "attention") - in_map >= LAYERS * 3 * of_queries


@pytest.mark.slow
@pytest.mark.parametrize(("table", "name", "way"), formulations.ROWS, ids=[way for _, _, way in formulations.ROWS])
def test_every_row_of_the_benchmark_changes_the_program(monkeypatch, table, name, way):
    if table is chunks.FORMULATIONS:
        monkeypatch.setattr(chunks, "LARGE", B * T * 128)
    elif name in ("dense gradient", "short derivative"):  # the rows before them, which are preferred in bfloat16
        monkeypatch.delitem(table, {"dense gradient": "pairs", "short derivative": "one pass"}[name])
    program = step.__wrapped__().kernels
    monkeypatch.delitem(table, name)
    assert step.__wrapped__().kernels != program
