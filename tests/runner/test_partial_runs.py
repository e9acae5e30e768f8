"""Runs that are stopped are resumed where they were, bit for bit."""

import contextlib
import dataclasses

import numpy as np
import pytest
from study.tiny import BASELINE, LOWER, RATE, cache_folder, kept_programs, results, run, tiny

from flaxformer.core.paths import replace_at
from flaxformer.devices.sharding import Devices
from flaxformer.runner import partial_runs
from flaxformer.runner.events import Finished, Message, Progressed
from flaxformer.runner.execution import Execution
from flaxformer.runner.partial_runs import PartialRun
from flaxformer.runner.program import MemoryFittedProgram
from flaxformer.store.store import Store
from flaxformer.study.program_groups import groups
from flaxformer.system import files
from flaxformer.system.errors import UserError

RUN = replace_at(
    BASELINE,
    {
        "training.steps": 12,
        "training.ema": 0.9,
        "training.evaluate_every": 4,
        "model.dropout": 0.25,
    },
)
[GROUP] = groups(tiny(baseline=RUN, axes=(), claims=(), seeds=range(3)).trials())
CHUNK = 2
MORE = [{}, {"group_size": 3}, {"diagnostics": True}, {"layout": "scanned"}]


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch):
    monkeypatch.setattr(partial_runs, "MIN_SECONDS_TO_SAVE", 0.0)


COMPILED = {}


def compiled(group, execution):
    """A group's program, once for all that is trained with it."""
    key = (id(group), str(execution))
    if key not in COMPILED:
        COMPILED[key] = (group, MemoryFittedProgram(group, execution.device_groups()[0], execution, 1, print))
    return COMPILED[key][1]


def trained(root, group=GROUP, stop_at=None, minutes=60.0, **execution):
    """Rows of a group's first two trials, the messages about them, and the steps; they may be stopped after so many."""
    how = Execution(**({"chunk_steps": CHUNK, "devices": 1} | execution))
    messages, taken, fitted = [], [], compiled(group, how)
    fitted.execution, fitted.notify = dataclasses.replace(how, output=root, save_minutes=minutes), messages.append

    rows = {}
    for event in fitted.train(group.trials[:2], lambda: sum(here for _, here in taken) == stop_at):
        if isinstance(event, Progressed):
            taken.append((event.steps, event.steps if event.tokens else 0))
        else:
            rows[event.row.trial] = event.row
    return rows, messages, taken


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "stops"),
    [({}, [4, 6]), *(pytest.param(how, [2, 4, 6, 8, 10], marks=pytest.mark.slow) for how in MORE)],
    ids=str,
)
def test_a_run_resumed_at_any_chunk_has_the_same_bits(tmp_path, how, stops):
    """Before an evaluation, at it, and after it."""
    whole = trained(None, **how)[0]
    runs = 2 if not how.get("group_size") else 1
    for stop in stops:
        first, messages, _ = trained(tmp_path, stop_at=stop, **how)
        assert (first, messages) == ({}, [])
        rows, messages, taken = trained(tmp_path, **how)
        assert results(rows) == results(whole)
        assert len(messages) == 1
        assert messages[0].endswith(f"resumed from step {stop}")
        assert taken[0] == (stop, 0)
        assert sum(steps for steps, _ in taken) == runs * RUN.training.steps
        assert sum(here for _, here in taken) == runs * RUN.training.steps - stop
        assert not [path for path in (tmp_path / "unfinished").rglob("*") if path.is_file()]


def test_saving_changes_no_bit_and_the_latest_save_is_resumed(tmp_path):
    whole = trained(None)[0]
    _, _, taken = trained(tmp_path, stop_at=10, minutes=1e-9)
    assert len(taken) == 1 + 5
    [folder] = (tmp_path / "unfinished" / GROUP.name).iterdir()
    assert sorted(int(path.name) for path in folder.iterdir()) == [8, 10]
    rows, messages, _ = trained(tmp_path, minutes=1e-9)
    assert results(rows) == results(whole)
    assert "from step 10" in messages[0]


@pytest.mark.slow
def test_chunks_of_another_length_resume_at_any_step(tmp_path):
    trained(tmp_path, stop_at=10, minutes=1e-9)
    rows, messages, _ = trained(tmp_path, chunk_steps=4)
    assert results(rows) == results(trained(None)[0])
    assert [text.rpartition(" step ")[2] for text in messages] == ["10"]


@pytest.mark.slow
def test_another_layout_resumes_the_same_numbers(tmp_path):
    trained(tmp_path, stop_at=6)
    rows, messages, _ = trained(tmp_path, layout="scanned")
    whole = trained(None)[0]
    for name, row in rows.items():
        np.testing.assert_allclose(row["train_loss_curve"], whole[name]["train_loss_curve"], rtol=1e-5)
    assert len(messages) == 1


@pytest.mark.parametrize("damage", ["flip", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cut", "gone"))])
def test_the_save_before_a_damaged_one_is_resumed(tmp_path, damage):
    trained(tmp_path, stop_at=10, minutes=1e-9)
    [folder] = (tmp_path / "unfinished" / GROUP.name).iterdir()
    largest = max((folder / "10").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    {
        "flip": lambda: largest.write_bytes(data),
        "cut": lambda: largest.write_bytes(data[:-7]),
        "gone": largest.unlink,
    }[damage]()
    rows, messages, _ = trained(tmp_path)
    assert results(rows) == results(trained(None)[0])
    assert "step 10" in messages[0]
    assert "is corrupt" in messages[0]
    assert messages[-1].endswith("from step 8")


@pytest.mark.slow
def test_runs_start_again_when_no_save_can_be_read(tmp_path):
    trained(tmp_path, stop_at=6)
    [folder] = (tmp_path / "unfinished" / GROUP.name).iterdir()
    for path in list(folder.rglob("*")):
        if path.is_file():
            path.write_bytes(b"")
    rows, _, taken = trained(tmp_path)
    assert results(rows) == results(trained(None)[0])
    assert taken[0] == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"optimizer.learning_rate": 2e-3}, {"training.steps": 16}, {"model.feed_forward.d_ff": 13}, {"task.length": 5}],
    ids=str,
)
def test_saves_of_other_runs_are_not_resumed(tmp_path, changes):
    trained(tmp_path, stop_at=6)
    study = tiny(baseline=replace_at(RUN, changes), axes=(), claims=(), seeds=range(3))
    [other] = groups(study.trials())
    other = dataclasses.replace(other, name=GROUP.name)
    _, messages, taken = trained(tmp_path, group=other)
    assert taken[0] == (0, 0)
    assert messages == []


@pytest.mark.slow
def test_a_resumed_run_that_diverged_stays_diverged(tmp_path):
    [group] = groups(tiny(baseline=replace_at(RUN, {"optimizer.learning_rate": 1e30}), axes=(), claims=()).trials())
    whole = trained(None, group=group)[0]
    assert {row["status"] for row in whole.values()} == {"diverged"}
    trained(tmp_path, group=group, stop_at=8)
    assert str(results(trained(tmp_path, group=group)[0])) == str(results(whole))


def test_a_full_disk_is_reported_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda folder: 0)
    rows, messages, _ = trained(tmp_path, minutes=1e-9)
    assert results(rows) == results(trained(None)[0])
    assert all("the disk is full" in text for text in messages)
    assert len(messages) > 1


@pytest.mark.slow
def test_a_run_that_another_process_trained_further_is_not_overwritten(tmp_path, monkeypatch):
    trained(tmp_path, stop_at=10, minutes=1e-9)
    monkeypatch.setattr(PartialRun, "resume", lambda self, initial: (0, initial))
    rows, messages, _ = trained(tmp_path, minutes=1e-9)
    assert results(rows) == results(trained(None)[0])
    assert any("expected a step from there on" in text for text in messages)


def test_zero_save_minutes_save_nothing(tmp_path):
    trained(tmp_path, stop_at=6, minutes=0.0)
    assert not (tmp_path / "unfinished").exists()
    with pytest.raises(UserError, match=r"save_minutes is -1; expected a number at least 0"):
        Execution(save_minutes=-1)


@pytest.mark.slow
def test_runs_on_a_mesh_are_resumed(tmp_path):
    mesh = Devices(fsdp=2)
    whole = trained(None, mesh=mesh, devices=2)[0]
    trained(tmp_path, stop_at=6, mesh=mesh, devices=2)
    rows, messages, _ = trained(tmp_path, mesh=mesh, devices=2)
    assert len(messages) == 1
    assert results(rows) == results(whole)


# --- a whole study -----------------------------------------------------------------------------------------


STUDY = tiny(baseline=RUN, axes=(RATE,), claims=(LOWER,))


def stopped_study(root):
    """Stop a study in the middle of its second run."""
    execution = Execution(output=root, devices=1, chunk_steps=CHUNK, save_minutes=1e-9)
    with contextlib.closing(run(STUDY, execution)) as events:
        steps = 0
        for event in events:
            steps += event.steps if isinstance(event, Progressed) else 0
            if steps > 1.5 * RUN.training.steps:
                return


@pytest.mark.slow
def test_a_study_resumes_in_the_middle_of_a_run_and_removes_its_saves(tmp_path):
    reference, root = tmp_path / "reference", tmp_path / "root"
    list(run(STUDY, Execution(output=reference, devices=1, chunk_steps=CHUNK)))
    assert not (reference / "unfinished").exists()
    stopped_study(root)
    assert (root / "unfinished").exists()
    stray = root / "unfinished" / groups(STUDY.trials())[0].name / ("0" * 16)
    stray.mkdir(parents=True)
    events = list(run(STUDY, Execution(output=root, devices=1, chunk_steps=CHUNK)))
    assert any(isinstance(event, Message) and "resumed from step" in event.text for event in events)
    assert 0 < sum(isinstance(event, Finished) for event in events) < len(STUDY.trials())
    assert results(Store(root).rows()) == results(Store(reference).rows())
    assert not (root / "unfinished").exists()


def test_a_link_in_place_of_saves_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    for place in ("", GROUP.name, f"{GROUP.name}/{'0' * 16}"):
        link = root / "unfinished" / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UserError, match="is a symbolic link; expected a folder of its own"):
            list(run(STUDY, Execution(output=root, devices=1)))
        link.unlink()
