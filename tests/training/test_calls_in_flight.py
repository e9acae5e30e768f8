"""Programs on a mesh of CPU devices: few calls are in flight, and threads suffice for those of a user's loop."""

import os
import subprocess
import sys
import textwrap

import pytest

from flaxformer.devices.sharding import Devices
from flaxformer.system import startup
from flaxformer.training import cpu
from flaxformer.training.cpu import MOST_CALLS, wait_every_few_calls

SET_UP = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices, shardings_of, replicated
from flaxformer.tasks import AssociativeRecall, Copy, EvaluationSet
from flaxformer.training import AdamW, Run, Training
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.step import start, train_step
task = Copy(symbols=8, length=8, batch_size=32)
run = Run(model=ModelConfig(vocabulary=16, layers=1, d_model=32), task=task, optimizer=AdamW(), training=Training())
"""
LOOPS = {
    "advance": """
        compiled = CompiledRun(run, DeviceGroup.of(Devices(data=2)))
        state = compiled.start(run)
        for _ in range(400):
            state, _ = compiled.advance(state, run, 1)
        jax.block_until_ready(state)
        """,
    "named evaluations": """
        named = run.replace(evaluations=tuple(EvaluationSet(name=f"e{i}", task=task) for i in range(200)))
        compiled = CompiledRun(named, DeviceGroup.of(Devices(data=2)))
        jax.block_until_ready(compiled.evaluate(compiled.start(named), named))
        """,
    "train_step": """
        mesh = Devices(data=2).mesh()
        batch = DeviceGroup.of(Devices(data=2)).put_source(task.load()).batch(jax.random.key(0), 0)
        with jax.set_mesh(mesh):
            state = jax.device_put(start(run), replicated(mesh))
            step = jax.jit(train_step, out_shardings=(replicated(mesh), None))
            for _ in range(400):
                state, _ = step(state, run, batch)
        jax.block_until_ready(state)
        """,
}


def test_every_16th_call_on_a_cpu_mesh_is_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(cpu.jax, "block_until_ready", waits.append)
    mesh = Devices(data=2).mesh()
    for number in range(3 * MOST_CALLS):
        assert wait_every_few_calls(number, mesh) == number
    assert len(waits) == 3


def test_a_single_device_never_waits(monkeypatch):
    monkeypatch.setattr(cpu.jax, "block_until_ready", lambda _: pytest.fail("waited"))
    assert [wait_every_few_calls(number, None) for number in range(40)] == list(range(40))


@pytest.mark.parametrize(
    ("devices", "flags", "threads"),
    [(-1, "", None), (1, "", None), (2, "", "4"), (8, "", "16"), (-1, "--xla_force_host_platform_device_count=3", "6")],
)
def test_threads_of_the_cpu_client(monkeypatch, devices, flags, threads):
    monkeypatch.delenv(startup.THREADS, raising=False)
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(startup.jax, "config", type("Config", (), {"values": {"jax_num_cpu_devices": devices}}))
    startup.two_threads_per_cpu_device()
    assert os.environ.get(startup.THREADS) == threads


@pytest.mark.parametrize(
    ("number", "flags", "updates"),
    [(-1, "", [5]), (1, "", []), (3, "", []), (-1, "--xla_force_host_platform_device_count=3", [])],
)
def test_a_number_of_devices_that_the_user_set_stays(monkeypatch, number, flags, updates):
    made = []
    config = {"values": {"jax_num_cpu_devices": number}, "update": lambda *words: made.append(words)}
    monkeypatch.setenv(startup.THREADS, "3")
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(startup, "cpu_cores", lambda: 5)
    monkeypatch.setattr(startup.jax, "config", type("Config", (), config))
    startup.one_cpu_device_per_core()
    assert made == [("jax_num_cpu_devices", number) for number in updates]


def test_a_number_of_threads_from_the_environment_stays(monkeypatch):
    monkeypatch.setenv(startup.THREADS, "3")
    monkeypatch.setattr(startup.jax, "config", type("Config", (), {"values": {"jax_num_cpu_devices": 8}}))
    startup.two_threads_per_cpu_device()
    assert os.environ[startup.THREADS] == "3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "threads"), [("advance", "2"), ("advance", ""), ("named evaluations", "2"), ("train_step", "")]
)
def test_hundreds_of_calls_on_two_cpu_devices_end(loop, threads):
    """With two threads, all would wait for each other from about 32 calls in flight on."""
    code = textwrap.dedent(SET_UP) + textwrap.dedent(LOOPS[loop]) + "\nprint('ended')\n"
    environment = {name: value for name, value in os.environ.items() if name not in (startup.THREADS, "XLA_FLAGS")}
    environment |= {startup.THREADS: threads} if threads else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "ended\n", done.stderr[-2000:]
