"""Device groups: runs are trained on one device or on a mesh, as many together as memory holds."""

import dataclasses
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from study.tiny import BASELINE, cache_folder, kept_programs, results, tiny

from flaxformer.core.paths import replace_at
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import Platform, compiling_for
from flaxformer.runner import program
from flaxformer.runner.events import Compiled, Finished, Message, Progressed
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.program import MemoryFittedProgram, Program
from flaxformer.runner.results import error_line
from flaxformer.store.rows import Row
from flaxformer.study import Axis
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.training.device_group import USABLE_MEMORY, DeviceGroup

TRIALS = tiny(axes=(Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate"),), claims=()).trials()
[GROUP] = groups(TRIALS)
COLLECTIVE = re.compile(r"\b(all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+)(-start)?\(")


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def events(**execution):
    return list(execute([GROUP], Execution(**({"chunk_steps": 3} | execution))))


def rows_of(found):
    return {event.row["trial"]: event.row for event in found if isinstance(event, Finished)}


# --- how many at a time ------------------------------------------------------------------------------------

OUT = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 96 bytes."


class Fake:
    """A program that needs 100 bytes per run, of which the device has a limited number, and trains nothing."""

    compile_seconds = 0.0
    analysis = True
    compiles = 1e9
    trains = 1e9

    def __init__(self, group, device_group, execution, stack_size):
        self.group, self.stack_size, self.bytes = group, stack_size, 100 * stack_size * self.analysis
        self.made.append(stack_size)
        if self.bytes > self.compiles:
            raise jax.errors.JaxRuntimeError(OUT)

    def train(self, trials, stops, partial_run, weights, profile=None):
        if 100 * self.stack_size > self.trains:
            raise jax.errors.JaxRuntimeError(OUT)
        yield Progressed(self.group.name, len(trials), 6, 6)
        return [
            Row(trial=one.name, group=self.group.name, seed=one.seed, status="done", group_size=self.stack_size)
            for one in trials
        ]


@pytest.fixture
def fake(monkeypatch):
    """Programs that are fakes, on an accelerator."""
    kind = type("Fake", (Fake,), {"made": []})
    monkeypatch.setattr(program, "Program", kind)
    monkeypatch.setattr("flaxformer.runner.execution.platform", lambda: Platform("gpu"))
    monkeypatch.setattr(kind, "memory", 1e9, raising=False)
    monkeypatch.setattr(DeviceGroup, "memory", property(lambda _: kind.memory))
    return kind


def sizes(found):
    """Members at a time by row, in the order in which they came."""
    return [event.row["group_size"] for event in found if isinstance(event, Finished)]


@pytest.mark.parametrize(
    ("memory", "devices", "made", "expected"),
    [
        (1e9, 1, [6], [6] * 6),
        (1e9, 2, [3], [3] * 6),
        (600, 1, [6], [6] * 6),
        (599, 1, [6, 2], [2] * 6),
        (470, 1, [6, 2], [2] * 6),
        (150, 1, [6, 1], [1] * 6),
        (10, 1, [6, 1], [1] * 6),
    ],
)
def test_as_many_runs_are_trained_together_as_fit_by_the_compilers_analysis(fake, memory, devices, made, expected):
    fake.memory = memory
    found = events(devices=devices)
    assert sorted(set(fake.made), reverse=True) == made
    assert sizes(found) == expected
    assert set(rows_of(found)) == {trial.name for trial in TRIALS}
    messages = {event.text for event in found if isinstance(event, Message)}
    assert len(messages) == len(made) - 1
    assert all(f"{made[-1]} runs at a time on cpu:" in text and "out of memory" in text for text in messages)


@pytest.mark.parametrize(("where", "made"), [("compiles", [5, 2, 1]), ("trains", [5, 2, 1])])
def test_out_of_memory_halves_the_runs_trained_together(fake, where, made):
    setattr(fake, where, 199)
    found = events(devices=1, group_size=5)
    assert fake.made == made
    assert sizes(found) == [1] * 6
    messages = [event.text for event in found if isinstance(event, Message)]
    assert [re.search(r"; (\d+) runs at a time", text)[1] for text in messages] == ["2", "1"]
    assert all("Out of memory while trying" in text for text in messages)


def test_an_exception_in_a_stack_fails_the_trial_alone_that_raises_it(fake, monkeypatch):
    """Also where the trial is in the middle of a stack; the others have a row of a stack of the same size."""
    bad, train, batches = TRIALS[1].name, fake.train, []

    def fail(self, trials, *rest, **named):
        batches.append([trial.name for trial in trials])
        if bad in batches[-1]:
            raise RuntimeError("no such seed")
        return (yield from train(self, trials, *rest, **named))

    monkeypatch.setattr(fake, "train", fail)
    found = events(devices=1, group_size=3)
    rows = rows_of(found)
    assert {name: row.status for name, row in rows.items()} == {
        trial.name: "failed" if trial.name == bad else "done" for trial in TRIALS
    }
    assert {row.group_size for row in rows.values() if row.status == "done"} == {3}
    assert [len(batch) for batch in batches] == [3, 1, 1, 1, 3]
    messages = [event.text for event in found if isinstance(event, Message)]
    assert any("no such seed; its 3 runs are trained one by one" in text for text in messages)


def test_the_cause_of_a_failed_callback_is_the_exception_of_the_callback():
    def fail(x):
        raise ValueError("a file is missing\nin two lines")

    call = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), "float32"), x))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(call(1.0))
    assert error_line(raised.value) == "ValueError: a file is missing"
    assert error_line(ValueError("of one line\nand another")) == "ValueError: of one line"


@pytest.mark.parametrize("where", ["compiles", "trains"])
def test_a_run_too_large_alone_fails_with_the_cause_out_of_memory(fake, where):
    setattr(fake, where, 99)
    rows = rows_of(events(devices=1, group_size=2))
    assert set(rows) == {trial.name for trial in TRIALS}
    for row in rows.values():
        assert (row["status"], row["seed"] in range(3)) == ("failed", True)
        assert row["cause"].startswith("out of memory with one run at a time (JaxRuntimeError: RESOURCE_EXHAUSTED")
        assert "Traceback" in row["error"]


def test_a_given_group_size_is_tried_whatever_the_analysis_says(fake):
    fake.memory = 10
    assert sizes(events(devices=1, group_size=4)) == [4] * 6
    assert fake.made == [4]


def test_another_error_does_not_halve_the_runs_trained_together(fake, monkeypatch):
    def train(self, trials, stops, partial_run, weights, profile=None):
        raise jax.errors.JaxRuntimeError("INTERNAL: no luck today")

    monkeypatch.setattr(fake, "train", train)
    rows = rows_of(events(devices=1))
    assert fake.made == [6]
    [cause] = {row["cause"] for row in rows.values()}
    assert re.fullmatch(r"JaxRuntimeError: INTERNAL: no luck today \(.*py, line \d+, in train\)", cause)


def test_a_halved_size_is_used_for_the_rest_of_the_group(fake):
    fake.trains = 250
    fitting = MemoryFittedProgram(
        GROUP, DeviceGroup((jax.devices()[0],)), Execution(group_size=5), 1, lambda text: None
    )
    rows = rows_of([*fitting.train(TRIALS[:5], lambda: False), *fitting.train(TRIALS[5:], lambda: False)])
    assert list(rows) == [trial.name for trial in TRIALS]
    assert fake.made == [5, 2]


@pytest.mark.parametrize(
    ("backend", "execution", "together"),
    [
        ("cpu", {}, 1),
        ("cpu", {"group_size": 4}, 4),
        ("cpu", {"group_size": 7}, 6),
        ("gpu", {}, 3),
        ("gpu", {"group_size": 4}, 4),
        ("gpu", {"exact": True}, 1),
    ],
)
def test_the_default_number_of_runs_trained_together(backend, execution, together):
    with compiling_for(backend):
        assert Execution(**execution).runs_together(6, 2) == together


def test_memory_is_that_of_the_smallest_device_of_a_group():
    @dataclasses.dataclass(frozen=True)
    class Device:
        limit: int
        process_index: int = 0

        def memory_stats(self):
            return {"bytes_limit": self.limit} if self.limit else None

    assert DeviceGroup((Device(100), Device(70))).memory == USABLE_MEMORY * 70
    assert DeviceGroup((Device(100), Device(7, process_index=1))).memory == USABLE_MEMORY * 100
    assert DeviceGroup((Device(0),)).memory > 1e18


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"exact": True, "group_size": 2}, "group_size is 2 and exact is given; expected 1"),
        ({"exact": True, "mesh": Devices(data=2)}, "mesh is data=2,fsdp=1,tensor=1 and exact is given"),
    ],
)
def test_exact_with_an_inexact_setting_is_refused(execution, message):
    with pytest.raises(UserError, match=message):
        Execution(**execution)


# --- where -------------------------------------------------------------------------------------------------


def test_device_groups_are_devices_or_meshes():
    one, two = jax.devices()
    assert [device_group.devices for device_group in Execution().device_groups()] == [(one,), (two,)]
    assert [device_group.devices for device_group in Execution(devices=1).device_groups()] == [(one,)]
    [both] = Execution(mesh=Devices(data=2)).device_groups()
    assert (both.devices, dict(both.mesh.shape)) == ((one, two), {"data": 2, "fsdp": 1, "tensor": 1})
    assert [device_group.devices for device_group in Execution(mesh=Devices()).device_groups()] == [(one,), (two,)]
    assert (Execution().where, Execution(mesh=Devices(data=2)).where) == ("2 devices", "1 × 2 devices")


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"mesh": Devices(data=3)}, "mesh is data=3,fsdp=1,tensor=1, 3 devices; expected at most 2 devices"),
        ({"mesh": Devices(data=2), "devices": 1}, "mesh is data=2.* and devices is 1; expected as many"),
    ],
)
def test_a_mesh_of_too_many_devices_is_refused(execution, message):
    with pytest.raises(UserError, match=message):
        Execution(**execution).device_groups()


def test_a_batch_that_a_mesh_does_not_divide_is_refused():
    [group] = groups(tiny(baseline=replace_at(BASELINE, {"task.batch_size": 3}), axes=(), claims=()).trials())
    with pytest.raises(UserError, match="batch_size is 3; expected a multiple of 2, which is mesh data 2"):
        next(execute([group], Execution(mesh=Devices(data=2))))


@pytest.mark.slow
def test_runs_on_several_devices_exchange_nothing():
    _, device_group = Execution().device_groups()
    programs = Program(GROUP, device_group, Execution(chunk_steps=3), 1).compiled.programs
    assert set(programs) == {"start", "advance 3", "evaluate"}
    for compiled in programs.values():
        assert "num_partitions" not in compiled.as_text()
        assert COLLECTIVE.search(compiled.as_text()) is None
        for sharding in jax.tree.leaves(compiled.output_shardings):
            assert sharding.device_set == {jax.devices()[1]}


@pytest.mark.parametrize(
    ("axis", "together"),
    [
        pytest.param(axis, together, marks=pytest.mark.slow if together == first else pytest.mark.exhaustive)
        for axis, first in {"data": 2, "fsdp": 1, "tensor": 2}.items()
        for together in (1, 2)
    ],
)
def test_a_mesh_gives_the_results_of_one_device(axis, together):
    alone = rows_of(events(devices=1))
    mesh = Devices(**{axis: 2})
    found = rows_of(events(mesh=mesh, group_size=together))
    assert set(found) == set(alone)
    for name, row in found.items():
        assert (row["status"], row["group_size"], row["device"]) == ("done", together, "cpu:0 and 1 more")
        for column in ("train_loss_curve", "validation_loss_curve"):
            np.testing.assert_allclose(row[column], alone[name][column], rtol=1e-4)
    [device_group] = Execution(mesh=mesh).device_groups()
    compiled = Program(GROUP, device_group, Execution(chunk_steps=3), together).compiled
    assert COLLECTIVE.search(compiled.programs["advance 3"].as_text()) is not None


FOUR = """
import jax, numpy as np
from runner.test_device_groups import COLLECTIVE, GROUP, Devices, Execution, Program, events, rows_of

assert jax.device_count() == 4
alone, found = rows_of(events(devices=1)), events(mesh=Devices(data=2))
rows = rows_of(found)
for name, row in rows.items():
    np.testing.assert_allclose(row["train_loss_curve"], alone[name]["train_loss_curve"], rtol=1e-4)
assert {row["device"] for row in rows.values()} == {"cpu:0 and 1 more", "cpu:2 and 1 more"}, rows
for device_group in Execution(mesh=Devices(data=2)).device_groups():
    advance = Program(GROUP, device_group, Execution(chunk_steps=3), 1).compiled.programs["advance 3"]
    assert "num_partitions=2" in advance.as_text() and COLLECTIVE.search(advance.as_text())
    for sharding in jax.tree.leaves(advance.output_shardings):
        assert sharding.device_set == set(device_group.devices)
assert set(rows) == set(alone)
print("as one")
"""


@pytest.mark.slow
def test_two_groups_of_two_devices_train_at_the_same_time():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.getcwd()]), "tests", os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-c", FOUR], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "as one", done.stderr


@pytest.mark.slow
def test_a_run_larger_than_memory_is_a_failed_row():
    baseline = replace_at(BASELINE, {"model.feed_forward.d_ff": 2**42})
    [group] = groups(tiny(baseline=baseline, axes=(), claims=(), seeds=[0]).trials())
    [row] = rows_of(execute([group], Execution(devices=1))).values()
    assert row["cause"].startswith("out of memory with one run at a time (")


@pytest.mark.slow
def test_no_row_is_lost_or_doubled_when_stopped_at_any_chunk():
    """Every chunk is one step, so that the stops are at both evaluations (3, 6), one before them and one after."""
    whole = results(rows_of(events(devices=1, chunk_steps=1)))
    for stop in range(1, 14):
        running = execute([GROUP], Execution(devices=1, chunk_steps=1))
        kept, advanced = {}, 0
        for event in running:
            advanced += not isinstance(event, Compiled | Finished)
            if isinstance(event, Finished):
                kept[event.row["trial"]] = event.row
            if advanced == stop:
                running.close()
                break
        left = dataclasses.replace(GROUP, trials=tuple(trial for trial in GROUP.trials if trial.name not in kept))
        rest = rows_of(execute([left], Execution(devices=1, chunk_steps=1)))
        assert not set(rest) & set(kept)
        assert results(kept | rest) == whole
