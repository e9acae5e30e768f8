"""Recipes and studies, compiled for TPUs and GPUs that are not there: memory, kernels, collectives.

`pytest -m compile` with the extra `tpu` or `cuda`; those whose compiler is not installed are skipped. The short form,
`pytest -m "compile and not slow"`, has one kind of device per compiler.
"""

import contextlib
import functools
import importlib.util
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from test_recipes import RECIPES, data, recipe  # noqa: F401  # a fixture

from flaxformer.cli.arguments import Plan
from flaxformer.cli.target import main
from flaxformer.components import Attention, Dense, LanguageModel, LearnedPositions
from flaxformer.config import ModelConfig
from flaxformer.data import prepare
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.nn.formulations import chunks
from flaxformer.nn.kernels import chunked
from flaxformer.study.load import load_study
from flaxformer.study.program_groups import groups
from flaxformer.targets.devices import TARGETS
from flaxformer.targets.program import Placement, compile_step
from flaxformer.targets.topology import PACKAGES, parse_target
from flaxformer.tasks import StandardLibrary, TokenFiles
from flaxformer.training import AdamW, Run, Training

pytestmark = pytest.mark.compile
GIB = 2**30
STUDY = Path(__file__).parents[2] / "experiments" / "norm_and_scale.py"
BOUNDS = {"gpt2": 16.0, "shakespeare_gpu": 4.0, "multi30k": 2.0}
"""GiB per device that a recipe may need, on 8 devices along data; of others, 1."""
KERNELS = {"tpu": "splash", "gpu": "cudnn"}


def of_attention(program):
    """Return the choices of kernels of attention."""
    return [choice for choice in program.choices if choice.function == "attention"]


GPT = Run(
    model=ModelConfig(
        vocabulary=50304,
        layers=4,
        d_model=512,
        attention=Attention(heads=8),
        feed_forward=Dense(d_ff=1536),
        positions=LearnedPositions(max_length=2048),
        head=LanguageModel(tied=True),
    ),
    task=StandardLibrary(length=2048, batch_size=8, evaluation_batches=1),
    optimizer=AdamW(),
    training=Training(steps=2, precision="bfloat16", remat="block"),
)


def target_named(name):
    """A target, if its compiler is installed."""
    target = parse_target(name)
    if importlib.util.find_spec(PACKAGES[target.device.platform][0]) is None:
        pytest.skip(f"no compiler for {name}")
    return target


def targets(*quick, slow=()):
    return pytest.mark.parametrize("target", [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)])


@functools.cache
def gpt(name, mesh, **changes):
    run = GPT.replace(model=GPT.model.replace(**changes))
    return compile_step(run, Placement.of(target_named(name), parse_devices(mesh)), "scanned")


def squares(program, length=2048):
    """Shapes in a program with two axes of the length of the sequences, as logits have; no weight has such axes."""
    shapes = {tuple(match.split(",")) for match in re.findall(r"\[([\d,]+)\]", program.text)}
    return sorted(shape for shape in shapes if shape.count(str(length)) > 1)


SMALL = Run(
    model=ModelConfig(
        vocabulary=257, layers=2, d_model=128, attention=Attention(heads=2), feed_forward=Dense(d_ff=256)
    ),
    task=StandardLibrary(length=512, batch_size=256, evaluation_batches=1),
    training=Training(steps=2, precision="bfloat16"),
)
FURTHER = ["v5p", "v6e", "h100", "a100-80", "b200", "v5p-4x4x4", "v6e-16x16", "a100-80x8", "b200x8"]


@targets("v5e", "h200", slow=FURTHER)
def test_every_target_compiles_with_its_kernel(target):
    target = target_named(target)
    program = compile_step(SMALL, Placement.of(target, Devices(data=target.count)), "scanned")
    assert program.fits
    assert {choice.formulation for choice in of_attention(program)} == {KERNELS[target.device.platform]}
    assert (program.collectives != ()) == (target.count > 1)
    assert program.memory.weights > 4 * 257 * 128
    assert squares(program, 512) == []


QUICK = {"gpt2", "shakespeare"}
"""Recipes of the short form."""
EIGHT = ["v6e-2x4", "v5p-2x2x2", "h100x8", "a100-80x8", "b200x8"]
"""Eight devices of each target, besides those of the short form."""


def test_recipes_are_compiled_for_every_target():
    assert {parse_target(name).device.target for name in ["v5e-2x4", "h200x8", *EIGHT]} == set(TARGETS)


@targets("v5e-2x4", "h200x8", slow=EIGHT)
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.stem, marks=[] if file.stem in QUICK else pytest.mark.slow) for file in RECIPES],
)
def test_every_recipe_compiles_within_its_bound(file, target, data):  # noqa: F811
    target, run = target_named(target), recipe(file, data)
    mesh = Devices(data=8) if run.task.batch_size % (8 * run.buckets) == 0 else None
    with contextlib.chdir(data):
        program = compile_step(run, Placement.of(target, mesh), "scanned")
    assert program.fits, program.error
    assert program.needed < BOUNDS.get(file.stem, 1.0) * GIB
    assert program.memory.weights > 0
    assert program.memory.moments >= 2 * program.memory.weights * 0.9
    if file.stem == "gpt2":
        assert [choice.formulation for choice in of_attention(program)] == [KERNELS[target.device.platform]]
    assert all(own.is_known for own in program.collectives)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1000, 1024])
@targets("v5e", "h200")
def test_a_loss_in_chunks_of_any_length_compiles(target, length):
    run = GPT.replace(
        model=GPT.model.replace(layers=1, d_model=768, attention=Attention(heads=12), feed_forward=Dense(d_ff=3072)),
        task=GPT.task.replace(length=length, batch_size=16),
        training=Training(steps=2, precision="bfloat16"),
    )
    assert 16 * length * 50304 > chunks.LARGE  # with 1,000 tokens, a chunk is not a multiple of 1,024
    assert compile_step(run, Placement.of(target_named(target), None)).fits


@targets("v5e", "h200", slow=["v6e", "h100"])
def test_the_default_study_compiles_for_64_runs_together(target):
    study = load_study(STUDY)
    group = groups(study.trials())[0]
    placement = Placement.of(target_named(target), None)
    alone, many = (compile_step(group.example, placement, stack_size=size) for size in (1, 64))
    assert many.fits
    assert many.memory.weights == 64 * alone.memory.weights
    assert many.memory.data == alone.memory.data
    assert many.needed < 2 * GIB
    assert many.needed > 20 * alone.needed


MESHES = ["data=8", "fsdp=8", "tensor=8"]


@targets("v5e-2x4", "h200x8", slow=["v6e-2x4", "h100x8"])
@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_share_a_model_with_one_fused_kernel(target, mesh):
    program = gpt(target, mesh)
    assert program.fits, program.error
    assert {choice.formulation for choice in of_attention(program)} == {KERNELS[parse_target(target).device.platform]}
    assert squares(program) == []
    whole = 4 * (50304 * 512 + 2048 * 512 + 4 * (4 * 512**2 + 2 * 512 * 1536))
    share = {"data=8": 1.0, "fsdp=8": 0.125, "tensor=8": 0.15}[mesh]
    assert program.memory.weights == pytest.approx(share * whole, rel=0.05)
    names = {own.name for own in program.collectives}
    assert "all-reduce" in names or "reduce-scatter" in names
    if mesh == "data=8":  # the gradient of each weight once
        sums = [own for own in program.collectives if own.name in ("all-reduce", "reduce-scatter")]
        assert sum(own.bytes * own.count for own in sums) == pytest.approx(whole, rel=0.05)
    assert ("all-gather" in names) == (mesh == "fsdp=8") or mesh == "tensor=8"
    if mesh == "fsdp=8":  # each layer's weights are gathered in the precision of the products, in the loop
        layers = [own for own in program.collectives if own.name == "all-gather" and own.bytes < 8e6]
        assert max(own.count for own in layers) >= 4


@targets("v5e-2x4", "h200x8")
def test_no_collective_of_a_table_is_in_float32(target):
    tables = [own for own in gpt(target, "fsdp=8").collectives if own.dtype == "f32" and own.bytes > 50e6]
    if parse_target(target).device.platform == "gpu":  # the compiler for GPUs sums the gradient of the table in float32
        tables = [own for own in tables if (own.name, own.count) != ("reduce-scatter", 1)]
    assert tables == []


@targets("v5e-2x4", "h200x8")
def test_without_a_fused_kernel_no_logits_are_held(target):
    program = gpt(
        target, "data=8", positions=LearnedPositions(max_length=2048), attention=Attention(heads=8, logit_cap=30.0)
    )
    (choice,) = of_attention(program)
    assert choice.formulation == "chunked"
    assert squares(program) == []
    assert chunked.MAX_LOGITS < 2048 * 2048
    assert program.fits


@targets("v5e", "h200")
def test_windows_and_packed_documents_reach_the_kernel(target):
    run = GPT.replace(
        model=GPT.model.replace(attention=Attention(heads=8, key_value_heads=2, d_head=72, window=256)),
        task=GPT.task.replace(batch_size=1),
    )
    program = compile_step(run, Placement.of(target_named(target), None), "scanned")
    (choice,) = of_attention(program)
    assert choice.formulation == KERNELS[parse_target(target).device.platform]
    assert "causal & window 256" in choice.call
    assert squares(program) == []


@targets("v5e", "h200")
def test_packed_documents_and_a_window_at_8192_tokens_hold_no_logits(target, tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(60):
        (tmp_path / "text" / f"{number}.txt").write_text("abcdefg hijk\n" * 400)
    prepare(tmp_path / "text", tmp_path / "tokens")
    length = 8192
    run = SMALL.replace(
        model=SMALL.model.replace(attention=Attention(heads=2, window=256)),
        task=TokenFiles(
            path=str(tmp_path / "tokens"), pack="documents", length=length, batch_size=2, evaluation_batches=1
        ),
        training=SMALL.training.replace(remat="block"),
    )
    program = compile_step(run, Placement.of(target_named(target), None), "scanned")
    (choice,) = of_attention(program)
    # The window counts the positions of a document, which begin anew at each, so no fused kernel has its band.
    assert choice.formulation == "chunked"
    assert "segments" in choice.call
    assert squares(program, length) == []
    assert program.needed < 2 * 2 * length**2 * 4, "two heads of two sequences, in float32"


@targets("v5e")
def test_a_program_that_does_not_fit_says_what_it_needs(target):
    run = GPT.replace(task=GPT.task.replace(batch_size=256), training=GPT.training.replace(remat="none"))
    program = compile_step(run, Placement.of(target_named(target), None), "scanned")
    assert not program.fits
    assert program.needed > program.available > 15 * GIB
    assert "exceeds" in program.error or "of 15.75G" in program.error


@targets("v5e-1x1", "h200")
def test_plan_prints_memory_kernels_and_limits(target, tmp_path):
    target_named(target)
    file = tmp_path / "run.py"
    file.write_text(
        "from flaxformer import Attention, ModelConfig\nfrom flaxformer.tasks import Induction\n"
        "from flaxformer.training import AdamW, Run, Training\n"
        "run = Run(model=ModelConfig(vocabulary=16, layers=1, d_model=32, attention=Attention(heads=2)),\n"
        "          task=Induction(symbols=16, length=16, batch_size=4), optimizer=AdamW(),\n"
        "          training=Training(steps=4, evaluate_every=2))\n"
    )
    console = Console(width=120, record=True, file=io.StringIO())
    assert main(Plan(file=file, target=target, quick=True), console) == 0
    text = console.export_text()
    assert f"{parse_target(target)}: fits, " in text
    for word in ("weights", "moments", "activations", "logits", "attention by xla", "a step takes at least"):
        assert word in text
