"""Transfers between device and host in compiled programs: the search itself, and training chunks, which have none."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.cli.target import transfers_line
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.data import prepare
from flaxformer.devices.sharding import Devices
from flaxformer.system.errors import UserError
from flaxformer.targets.program import CompiledStep, Placement, TargetMemory, compile_step
from flaxformer.targets.texts import host_transfers
from flaxformer.targets.topology import PACKAGES, parse_target
from flaxformer.tasks import StandardLibrary, TokenFiles, token_files
from flaxformer.tasks.host import HostSource
from flaxformer.training import LossTerm, Run, Training

LINES = {
    "  %a = ((f32[2]{0}, pred[]), token[]) infeed(%token), infeed_config=\"x\"": "infeed",
    "  %a = token[] outfeed(%x, %token), outfeed_shape=f32[2]{0}": "outfeed",
    "  %a = (f32[]{:T(128)}, u32[], token[]) send(%x, %t), channel_id=1, is_host_transfer=true": "send to the host",
    "  %a = (f32[2]{0}, u32[], token[]) recv(%t), channel_id=2, is_host_transfer=true": "receive from the host",
    "  %a = f32[2]{0} custom-call(%x), custom_call_target=\"xla_ffi_python_gpu_callback\"": "Python callback",
    "  %a = (f32[7,5]{1,0:T(8,128)S(5)}, f32[7,5]{1,0}, u32[]{:S(2)}) copy-start(%x)": "copy to the host",
    "  %a = (f32[7,5]{1,0:T(8,128)}, f32[7,5]{1,0:S(5)}, u32[]{:S(2)}) copy-start(%x)": "copy from the host",
    "  %a = f32[7,5]{1,0:S(5)} copy(%x)": "copy to the host",
    "  %a = (f32[7]{0}, u32[], token[]) send(%x, %t), channel_id=1, source_target_pairs={{0,1}}": "",
    "  %a = (f32[7,5]{1,0:S(1)}, f32[7,5]{1,0}, u32[]{:S(2)}) copy-start(%x)": "",
    "  %callback.1 = f32[2]{0} add(%x, %y), metadata={op_name=\"callback\"}": "",
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_program_is_a_transfer_or_none(line):
    assert host_transfers(f"ENTRY %main () -> f32[] {{\n{line}\n}}") == ({LINES[line]: 1} if LINES[line] else {})


def test_a_callback_of_python_is_found_in_a_compiled_program():
    def printing(x):
        jax.debug.print("{}", x[0])
        return x + 1

    texts = [jax.jit(f).lower(jnp.ones(3)).compile().as_text() for f in (printing, lambda x: x + 1)]
    assert [list(host_transfers(text)) for text in texts] == [["Python callback"], []]


def test_the_plan_names_the_transfers():
    program = CompiledStep(TargetMemory(1, 2, 0, 3, 4), 10, 20, True, (), (), 1, 1.0)
    assert transfers_line(program) == "within a step, the device and the host exchange: nothing"
    line = "%a = token[] outfeed(%x, %token)\n"
    assert transfers_line(program._replace(text=2 * line)).endswith("exchange: 2 × outfeed")


class Printed(LossTerm):
    """A loss term of a user's own that prints."""

    def of_outputs(self, output, targets, weights):
        jax.debug.print("{}", weights.sum())
        return (output[..., 0] * weights).sum(), weights.sum()


RUN = Run(
    model=ModelConfig(
        vocabulary=257, layers=2, d_model=128, attention=Attention(heads=2), feed_forward=Dense(d_ff=256), dropout=0.1
    ),
    task=StandardLibrary(length=256, batch_size=8, evaluation_batches=1),
    training=Training(steps=6, precision="bfloat16", micro_batches=2),
)


def chunk(run, target, mesh=None, **settings):
    """A chunk of 3 steps, compiled for a target whose compiler is installed."""
    if importlib.util.find_spec(PACKAGES[parse_target(target).device.platform][0]) is None:
        pytest.skip(f"no compiler for {target}")
    return compile_step(run, Placement.of(parse_target(target), mesh), "scanned", steps=3, **settings)


@pytest.mark.compile
@pytest.mark.parametrize("target", ["v5e-2x4", "h200x8"])
def test_a_training_chunk_exchanges_nothing_with_the_host(target):
    program = chunk(RUN, target, Devices(data=4))
    assert program.text.count("while(") >= 1, "the steps are a loop"
    assert program.transfers == {}


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "h200"])
def test_a_chunk_of_a_group_of_runs_exchanges_nothing_with_the_host(target):
    for size in (None, 2):
        program = chunk(RUN, target, stack_size=size)
        assert program.text.count("while(") >= 1
        assert program.transfers == {}


@pytest.mark.compile
@pytest.mark.parametrize("target", ["v5e", "h200"])
def test_a_chunk_of_data_from_the_host_exchanges_nothing_either(target, tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for number in range(60):
        (tmp_path / "text" / f"{number}.txt").write_text("abcdefg hijk\n" * 40)
    prepare(tmp_path / "text", tmp_path / "tokens")
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    task = TokenFiles(path=str(tmp_path / "tokens"), length=256, batch_size=8, evaluation_batches=1)
    source = task.load()
    assert isinstance(source, HostSource)
    program = chunk(RUN.replace(task=task), target, source=source)
    assert program.memory.data >= 3 * np.prod((8, 256)) * 4 * 2, "inputs and targets of three steps"
    assert program.transfers == {}


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "h200"])
def test_transfers_that_a_user_asks_for_are_found(target):
    printing = RUN.replace(loss_terms=(Printed(),))
    offloading = RUN.replace(training=RUN.training.replace(offload_optimizer=True))
    if target == "h200":
        with pytest.raises(UserError, match=r"calls Python .*jax\.debug\.print.* for h200 without the device"):
            chunk(printing, target)
        with pytest.raises(UserError, match="offload_optimizer is True, which JAX cannot compile for h200 without"):
            chunk(offloading, target)
        return
    assert set(chunk(printing, target).transfers) & {"Python callback", "send to the host"}
    away = chunk(offloading, target)
    assert set(away.transfers) == {"copy to the host", "copy from the host"}
    assert away.memory.moments < 1000 < chunk(RUN, target).memory.moments
