"""`flaxformer run --track`: each trial becomes one run of the tracker, once, whatever is resumed."""

import contextlib
import shutil
import struct
from pathlib import Path

import pytest
from study.tiny import FILE, cache_folder, kept_programs, tiny

import flaxformer
from flaxformer.cli import main
from flaxformer.jobs.trackers import Tracker, choose, trials
from flaxformer.jobs.trackers.tensorboard import TensorBoard
from flaxformer.jobs.trackers.trials import log_lines, track
from flaxformer.runner.events import Finished, Message
from flaxformer.store.store import Store


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def run(*words):
    """Run the tiny study into the folder `out` of the working folder."""
    assert main(["run", "tiny.py", "--output", "out", *words]) == 0


@pytest.fixture(scope="module")
def first_seed(tmp_path_factory):
    """A folder in which one seed was trained without a tracker."""
    folder = tmp_path_factory.mktemp("first_seed")
    with contextlib.chdir(folder):
        Path("tiny.py").write_text(FILE)
        run("--seeds", "1")
    return folder


@pytest.fixture
def trained(first_seed, tmp_path, monkeypatch):
    """A copy of that folder, in which the test runs; returns its store."""
    shutil.copytree(first_seed, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "out")


def scalars(folder):
    """The numbers in the one event file of a folder, read by the format alone."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = proto.Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        values = [value for value in event.summary.value if value.HasField("simple_value")]
        found += [(value.tag, event.step, value.simple_value) for value in values]
    return found


@pytest.mark.slow
def test_tensorboard_has_the_curves_of_every_trial_by_arm_and_seed(trained):
    pytest.importorskip("tensorboardX")
    run("--seeds", "2", "--track", "tensorboard")  # the trials before, without a tracker, are written too
    board, rows = trained.root / "tensorboard", trained.rows()
    assert len(rows) == 8
    assert len(list(board.rglob("events.*"))) == 8
    for trial in tiny(seeds=range(2)).trials():
        found, row = scalars(board / trial.arm.name / f"seed={trial.seed}"), rows[trial.name]
        losses = [value for tag, _, value in found if tag == "training/loss"]
        assert losses == pytest.approx(row["train_loss_curve"])
        evaluated = [(step, value) for tag, step, value in found if tag == "evaluation/validation_loss"]
        assert evaluated == [
            (step, pytest.approx(value))
            for step, value in zip(row["evaluated_at"], row["validation_loss_curve"], strict=True)
        ]


@pytest.mark.slow
def test_a_resumed_study_writes_no_trial_twice(trained, monkeypatch):
    pytest.importorskip("tensorboardX")
    opened = []

    class Counted(TensorBoard):
        def start(self, run):
            opened.append((run.arm, run.seed))
            super().start(run)

    monkeypatch.setitem(choose.TRACKERS, "tensorboard", Counted)
    for seeds in ("1", "2"):
        run("--seeds", seeds, "--track", "tensorboard")
    assert sorted(opened) == sorted((trial.arm.name, trial.seed) for trial in tiny(seeds=range(2)).trials())


OWN = """
from flaxformer import Tracker

class Steps(Tracker):
    def start(self, run):
        self.name, self.steps = run.name, 0

    def log(self, step, values):
        self.steps += 1

    def close(self):
        with open("steps.txt", "a") as file:
            print(self.name, self.steps, file=file)
"""


class Recorded(Tracker):
    """A tracker that keeps the trials and their steps."""

    def __init__(self):
        self.runs, self.steps, self.closed = [], [], 0

    def start(self, run):
        self.runs.append(run)
        self.steps.append([])

    def log(self, step, values):
        self.steps[-1].append(step)

    def close(self):
        self.closed += 1


@pytest.mark.long
def test_trials_are_grouped_by_study_and_arm_with_their_recipe(trained):
    recorded = Recorded()
    list(track((), trained, {"Recorded": lambda: recorded}))
    assert {run.study for run in recorded.runs} == {"tiny"}
    assert sorted(run.arm for run in recorded.runs) == sorted(arm.name for arm in tiny().arms())
    rates = {run.arm: run.config["optimizer"]["learning_rate"] for run in recorded.runs}
    assert rates["norm=pre,rate=high"] == 1e-2
    assert len({run.key for run in recorded.runs}) == recorded.closed == 4
    assert all(steps == sorted(steps) for steps in recorded.steps)


@pytest.mark.long
def test_python_takes_an_object_and_the_command_a_class_of_the_file(trained, monkeypatch):
    recorded = Recorded()
    flaxformer.run("tiny.py", "out", track=[recorded], progress=False)
    assert len(recorded.runs) == 12
    assert sorted(path.name.split("-")[0] for path in (trained.root / "trackers").glob("*-*")) == ["Recorded"] * 12
    flaxformer.run("tiny.py", "out", track=[recorded], progress=False)
    assert len(recorded.runs) == 12
    Path("tiny.py").write_text(FILE + OWN)
    run("--track", "Steps")
    lines = Path("steps.txt").read_text().splitlines()
    expected = [f"{run.name} {len(steps)}" for run, steps in zip(recorded.runs, recorded.steps, strict=True)]
    assert sorted(lines) == sorted(expected)


class Fails(Tracker):
    def log(self, step, values):
        raise OSError("no network")


def test_a_tracker_that_fails_is_reported_once_and_others_continue(trained):
    recorded = Recorded()
    events = [Finished("group", row) for row in trained.rows().values()]
    found = list(track(events, trained, {"Fails": Fails, "Recorded": lambda: recorded}))
    (message,) = [event.text for event in found if isinstance(event, Message)]
    assert message.startswith("Fails has failed and is not used any more (")
    assert "OSError: no network" in message
    assert [event for event in found if isinstance(event, Finished)] == events
    assert len(recorded.runs) == 4


def test_failed_runs_and_other_studies_rows_are_left_out(trained):
    recorded = Recorded()
    row = next(iter(trained.rows().values()))
    rung, failed = row | {"fingerprint": "0" * 16}, row | {"status": "failed"}
    own = trials.StudyTrackers(trained, {"Recorded": lambda: recorded})
    assert [*own.write(rung), *own.write(failed)] == []
    assert recorded.runs == []


def test_lines_hold_each_loss_once_in_the_order_of_the_steps():
    row = {
        "evaluated_at": [0, 2, 4],
        "train_loss_curve": [4.0, 3.0, 2.0, 1.0],
        "validation_loss_curve": [5.0, 4.5, 1.5],
        "diagnostics/norm_curve": None,
        "seconds": 8.0,
    }
    assert list(log_lines(row)) == [
        {"kind": "evaluation", "step": 0, "validation_loss": 5.0},
        {"kind": "steps", "step": 2, "loss": [4.0, 3.0], "seconds": 4.0},
        {"kind": "evaluation", "step": 2, "validation_loss": 4.5},
        {"kind": "steps", "step": 4, "loss": [2.0, 1.0], "seconds": 4.0},
        {"kind": "evaluation", "step": 4, "validation_loss": 1.5},
    ]


def test_an_unknown_tracker_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    assert main(["run", "tiny.py", "--track", "tensorbord"]) == 2
    assert "track is 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
