"""The largest batch that fits, the roofline, and suggestions, with programs that are not compiled."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from flaxformer.cli import target
from flaxformer.cli.arguments import Plan
from flaxformer.cli.target import collectives_table, formulation_lines, gib, memory_table, plan_run, step_line
from flaxformer.components import Attention
from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import FormulationChoice
from flaxformer.study.declare import Axis, Study
from flaxformer.study.program_groups import groups
from flaxformer.targets.collectives import Collective
from flaxformer.targets.compiler import NotCompiled
from flaxformer.targets.limits import COMPILATIONS, Largest, largest
from flaxformer.targets.program import CompiledStep, TargetMemory
from flaxformer.targets.roofline import roofline
from flaxformer.targets.suggestions import kernel_suggestions, suggestions
from flaxformer.targets.texts import parse_bytes_needed
from flaxformer.targets.topology import parse_target
from flaxformer.tasks import Induction
from flaxformer.training import Run, Training


def program(needed, available=1000, collectives=(), choices=(), memory=(1, 2, 0, 30, 40), traffic=100):
    return CompiledStep(
        TargetMemory(*memory), needed, available, needed <= available, choices, collectives, traffic, 1.0
    )


@pytest.mark.parametrize("first", [1, 4, 64, 300])
@pytest.mark.parametrize(("fixed", "each"), [(100, 7), (0, 90), (10, 900), (950, 49)])
def test_the_largest_number_that_fits_is_found(first, fixed, each):
    compiled = []

    def compile_for(number):
        compiled.append(number)
        return program(fixed + each * number)

    found = largest(compile_for, first, 1, program(fixed + each * first))
    true = (1000 - fixed) // each
    assert true - max(1, true // 8) <= found.number <= true
    assert len(compiled) == len(set(compiled)) <= COMPILATIONS
    assert found.too_large is None or found.too_large > true


def test_numbers_are_multiples_of_the_unit_and_at_most_the_ceiling():
    found = largest(lambda n: program(100 + n), 16, 8, program(116))
    assert found.number % 8 == 0
    assert found.number > 800
    assert largest(lambda n: program(100 + n), 16, 8, program(116), ceiling=64) == Largest(64, None)
    assert Largest(64, None).describe(64) == "64, all"
    assert Largest(8, 16).describe() == "8 (16 does not fit)"
    assert Largest(0, 1).describe() == "below 1"


def test_nothing_fits_if_one_example_does_not():
    assert largest(lambda n: program(2000), 8, 8, program(2000)) == Largest(0, 8)


@pytest.mark.parametrize("first", [8, 48, 200])
@pytest.mark.parametrize("dies", [lambda n: n > 40, lambda n: n >= 100, lambda n: n == 142, lambda n: True])
def test_a_number_for_which_the_compiler_dies_ends_only_itself(first, dies):
    def compile_for(number):
        return NotCompiled(f"died at {number}") if dies(number) else program(7 * number)

    found = largest(compile_for, first, 1, compile_for(first))
    working = [number for number in range(1, 143) if not dies(number)]  # 143 · 7 > 1000
    assert found.number <= max(working, default=0)
    assert found.number >= 0.75 * min(max(working, default=0), 141)
    assert found.too_large is None or found.too_large > 142
    numbers = sorted(number for number, _ in found.not_compiled)
    assert all(map(dies, numbers))
    if numbers:
        words = f"not known for {', '.join(map(str, numbers))}: died at {numbers[0]}"
        assert found.describe().endswith(words)
    assert bool(working) or found.describe().startswith("not known; ")


class DyingCompiler:
    """A compiler that ends its process for batches, and groups, of more than 20."""

    def __init__(self):
        self.arguments = Plan(file=Path("run.py"), target="v5e", exact=False)

    def compile(self, mesh, changes=None, group=None, number=None):
        size = (changes or {}).get("task.batch_size", 16) if group is None else number
        return NotCompiled("the compiler ended its process (last words)") if size > 20 else program(size, available=64)


def test_a_plan_goes_on_where_the_compiler_dies():
    console = Console(width=120, record=True, file=io.StringIO())
    plan_run(RUN, DyingCompiler(), parse_target("v5e"), None, console)
    text = console.export_text()
    assert "v5e: fits, 16 of 64" not in text  # bytes, shown in GiB
    assert "v5e: fits, " in text
    assert re.search(r"largest batch_size: at least (19|20); not known for .*64: the compiler ended its process", text)
    assert "last words" in text


def test_the_rows_of_other_programs_stay_where_the_compiler_dies(monkeypatch):
    study = Study(
        name="width",
        question="Width?",
        baseline=RUN,
        axes=(Axis("model.d_model", {"narrow": 32, "wide": 64}),),
        seeds=range(2),
    )
    monkeypatch.setattr(target, "program_groups", lambda arguments: tuple(groups(study.trials())))
    console = Console(width=120, record=True, file=io.StringIO())
    compiler = DyingCompiler()
    compile_smaller = compiler.compile
    compiler.compile = lambda mesh, group, number: compile_smaller(mesh, group=group, number=number + 20 * group)
    target.plan_study(study, compiler, parse_target("v5e"), None, console)
    text = console.export_text()
    assert "v5e: not known, 1 of 2 programs" in text
    assert text.count("not known: the compiler ended its process (last words)") >= 1


@pytest.mark.parametrize(
    ("message", "bytes_needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.50G of 15.75G hbm.", 16.5 * 2**30),
        ("the total memory required for HLO temporaries (84.01G) exceeds available HBM (15.75G)", 84.01 * 2**30 + 5),
        ("RESOURCE_EXHAUSTED: something else", 0),
    ],
)
def test_bytes_needed_are_read_from_the_message(message, bytes_needed):
    assert parse_bytes_needed(message, 5) == int(bytes_needed)


def test_the_roofline_is_the_slowest_resource():
    device = parse_target("h200").device
    moved = Collective("all-gather", "bf16", (2**20, 1024), 8, 12)
    bound = roofline(program(1, collectives=(moved,), traffic=48_000_000_000), device, 989.5e12, "bfloat16")
    assert bound.compute == 1.0
    assert bound.memory == pytest.approx(0.01 + 2 * 70 / 4.8e12)
    assert bound.network == moved.sent_bytes / 450e9
    assert (bound.seconds, bound.limit) == (1.0, "compute")
    assert roofline(program(1, traffic=48_000_000_000), device, 1e9, "float32").limit == "memory bandwidth"
    assert "limited by compute" in step_line(989.5e12, bound)


RUN = Run(
    model=ModelConfig(vocabulary=16, layers=2, d_model=32, attention=Attention(heads=2)),
    task=Induction(symbols=16, length=16, batch_size=16),
    training=Training(steps=4, evaluate_every=2),
)


def test_suggestions_are_valid_changes_in_order_of_their_cost():
    texts = [one.text for one in suggestions(RUN, parse_target("h200x8"), Devices(data=8))]
    assert texts[:3] == ["training.precision=bfloat16", "--mesh fsdp=8", "training.micro_batches=2"]
    assert "training.micro_batches=4" not in texts  # 16 examples on 8 devices
    assert "training.remat=block --mesh fsdp=8" in texts
    single = [one.text for one in suggestions(RUN, parse_target("h200"), None)]
    assert "training.micro_batches=8" in single
    assert not any("fsdp" in text for text in single)


CHOICES = (
    FormulationChoice("attention", "chunked", "T 1024, float32, causal", ("cudnn: cuDNN takes bfloat16 or float16",)),
    FormulationChoice("attention", "cudnn", "T 512"),
    FormulationChoice("norm", "one pass", "bfloat16 [2, 3]", ("some: reason",)),
    FormulationChoice("norm", "reference", "float32 [2, 3]"),
)


def test_missing_kernels_are_suggested_with_their_reason():
    assert kernel_suggestions(CHOICES, "gpu") == [
        "no fused attention for T 1024, float32, causal: cuDNN takes bfloat16 or float16"
    ]
    assert formulation_lines(CHOICES) == [
        "attention by chunked: T 1024, float32, causal (cudnn: cuDNN takes bfloat16 or float16)",
        "attention by cudnn: T 512",
        "norm by one pass",
    ]


def test_tables_have_every_kind_of_memory_and_the_rest_of_the_collectives():
    table = memory_table([("step", program(2 * 2**30))])
    assert table.header == ["GiB per device", "weights", "moments", "data", "logits", "activations", "total"]
    assert table.rows[0][-1] == "2"
    many = tuple(Collective("all-gather", "bf16", (size,), 8, 1) for size in range(20, 0, -1))
    rows = collectives_table(program(1, collectives=many)).rows
    assert len(rows) == 9
    assert rows[-1][0] == "12 more"
    assert [gib(0.5 * 2**30), gib(150 * 2**30)] == ["0.5", "150"]
