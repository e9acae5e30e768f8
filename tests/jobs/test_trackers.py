"""Trackers have every line of the log once, whatever stopped a run, and never stop it."""

import json
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flaxformer.core.canonical import canonical
from flaxformer.jobs import Job
from flaxformer.jobs.recording import record
from flaxformer.jobs.trackers import TrackedRun, Tracker
from flaxformer.jobs.trackers.attached import values_of
from flaxformer.jobs.trackers.tensorboard import TensorBoard
from flaxformer.jobs.trackers.wandb import WeightsAndBiases, has_key
from flaxformer.runner.events import Evaluated, Progressed
from flaxformer.store.job_log import read
from flaxformer.study.load import load
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import reads
from flaxformer.training import AdamW, Run

TESTS = Path(__file__).parents[1]
TIMES = ("training/steps_per_second", "training/goodput")
"""Numbers that differ between two launches of equal steps."""
RUN = Run(optimizer=AdamW(learning_rate=1e-2))


def launched(folder, *track, since=0, until=6):
    """A launch that goes on after a checkpoint, up to a step: chunks of one step, an evaluation every three."""
    folder.mkdir(exist_ok=True, parents=True)
    events = []
    for step in range(since + 1, until + 1):
        events.append(Progressed("", 1, 1, 8, step, 0.5, {"loss": [1 / step], "gradient_norm": [step / 7]}))
        events += [Evaluated(step, {"validation_loss": 2 / step})] if step % 3 == 0 else []
    assert list(record(iter(events), RUN, Job(output=folder, track=track), since)) == events


def job_in(folder):
    return TrackedRun(folder=folder, name=folder.name, config=canonical(RUN), seed=0)


def points(folder):
    """Every number of the log by name and step, but for times."""
    found = {}
    for line in read(folder / "log.jsonl"):
        for step, numbers in values_of(line):
            for name, value in numbers.items():
                assert (name, step) not in found
                found[name, step] = value
    return {key: value for key, value in found.items() if key[0] not in TIMES}


def test_points_are_the_steps_that_were_taken():
    line = {"kind": "steps", "step": 7, "seconds": 0.5, "loss": [3.0, 2.0], "learning_rate": [0.1, 0.2]}
    assert list(values_of(line)) == [
        (6, {"training/loss": 3.0, "training/learning_rate": 0.1}),
        (7, {"training/loss": 2.0, "training/learning_rate": 0.2, "training/steps_per_second": 4.0}),
    ]
    line = {"kind": "evaluation", "step": 7, "validation_loss": 1.5}
    assert list(values_of(line)) == [(7, {"evaluation/validation_loss": 1.5})]


def event_files(folder):
    """The numbers and texts in a folder of event files, read by the format alone."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    numbers, texts = [], {}
    for path in (folder / "tensorboard").iterdir():
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = proto.Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    numbers.append((value.tag, event.step, value.simple_value))
                else:
                    texts[value.tag, event.step] = value.tensor.string_val[0].decode()
    return numbers, texts


def test_tensorboard_has_every_number_once_whatever_stopped_the_run(tmp_path):
    pytest.importorskip("tensorboardX")
    launched(tmp_path, until=2)  # without a tracker: it is added later
    launched(tmp_path, "tensorboard", since=2, until=5)
    (old,) = (tmp_path / "tensorboard").iterdir()
    old.rename(old.with_name("events.out.tfevents.1.of_another_second"))
    launched(tmp_path, "tensorboard", since=3)
    numbers, texts = event_files(tmp_path)
    numbers = [row for row in numbers if row[0] not in TIMES]
    expected = points(tmp_path)
    assert len(numbers) == len(expected) == 6 * 2 + 2
    assert {(name, step): value for name, step, value in numbers} == pytest.approx(expected)
    assert "AdamW" in texts["run/text_summary", 0]


def test_tensorboard_shows_a_sample_as_it_is(tmp_path):
    pytest.importorskip("tensorboardX")
    board = TensorBoard()
    board.start(job_in(tmp_path))
    ((step, values),) = values_of({"kind": "sample", "step": 5, "prompt": "# a\n", "text": "<b>"})
    board.log(step, values)
    board.close()
    assert event_files(tmp_path)[1]["sample/text_summary", 5] == "    # a\n    <b>\n"


class Recorder:
    """A run of W&B."""

    step, resumed, finished = 0, False, False

    def __init__(self, **settings):
        self.settings, self.rows = settings, []

    def log(self, values, step):
        self.rows += [(name, step, value) for name, value in values.items()]

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """W&B, with runs that are recorded rather than sent; and no key."""
    module = pytest.importorskip("wandb")
    runs = []

    def init(**settings):
        runs.append(Recorder(**settings))
        return runs[-1]

    monkeypatch.setattr(module, "init", init)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/none")
    return runs


def test_wandb_finds_its_run_again_and_has_every_number_once(tmp_path, wandb):
    launched(tmp_path, "wandb", until=5)
    launched(tmp_path, "wandb", since=3)
    one, two = wandb
    assert one.finished
    assert two.finished
    assert one.settings["id"] == two.settings["id"] == (tmp_path / "wandb" / "id").read_text()
    assert two.settings["resume"] == "allow"
    assert two.settings["project"] == "flaxformer"
    assert two.settings["config"]["optimizer"]["learning_rate"] == 0.01
    rows = {(name, step): value for name, step, value in two.rows if name not in TIMES}
    assert rows == points(tmp_path)  # offline, it has nothing of the first launch
    launched(tmp_path / "another", "wandb")
    assert wandb[-1].settings["id"] != one.settings["id"]


def test_wandb_receives_the_lines_that_it_does_not_have(tmp_path, wandb, monkeypatch):
    launched(tmp_path, until=3)
    monkeypatch.setattr(Recorder, "step", 3)
    monkeypatch.setattr(Recorder, "resumed", True)
    launched(tmp_path, "wandb", since=3)
    rows = {(name, step): value for name, step, value in wandb[0].rows if name not in TIMES}
    assert rows == {key: value for key, value in points(tmp_path).items() if key[1] >= 3}


@pytest.mark.parametrize(
    ("environment", "mode"),
    [({}, "offline"), ({"WANDB_API_KEY": "x" * 40}, None), ({"WANDB_MODE": "disabled"}, None)],
)
def test_wandb_needs_no_account(tmp_path, wandb, monkeypatch, environment, mode):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    WeightsAndBiases().start(job_in(tmp_path))
    assert wandb[0].settings["mode"] == mode


def test_wandb_knows_a_key_of_its_server_alone(tmp_path, wandb, monkeypatch):
    keys = tmp_path / "netrc"
    keys.write_text("machine api.wandb.ai login user password " + "x" * 40 + "\n")
    keys.chmod(0o600)
    monkeypatch.setenv("NETRC", str(keys))
    assert has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://own.example:8080")
    assert not has_key()


def test_the_real_wandb_writes_one_folder_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    launched(tmp_path, "wandb", until=5)
    time.sleep(1.1)  # wandb names its folders by the second
    launched(tmp_path, "wandb", since=3)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 20
    while b"evaluation/validation_loss" not in file.read_bytes():  # its process writes on after `finish`
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Failing(Tracker):
    """A tracker that fails at the start, at a number, or at the end."""

    def __init__(self, when):
        self.when, self.updates = when, 0

    def start(self, run):
        if self.when == "started":
            raise OSError("no network\nand more")

    def log(self, step, values):
        self.updates += 1
        if self.when == "updated":
            raise OSError("no network")

    def close(self):
        if self.when == "closed":
            raise OSError("no network")


@pytest.mark.parametrize("when", ["started", "updated", "closed"])
def test_a_tracker_that_fails_is_reported_once_and_training_goes_on(tmp_path, when, caplog):
    tracker = Failing(when)
    launched(tmp_path, tracker)
    assert len(read(tmp_path / "log.jsonl")) == 1 + 6 + 2 + 1
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Failing has failed and is not used any more (")
    assert f"{__file__}, line " in message
    assert message.endswith("OSError: no network); training continues, and the output folder has all numbers")
    assert tracker.updates == {"started": 0, "updated": 1, "closed": 6 + 2}[when]


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("trackio", "trackio")]
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"track={name} needs {package} .*pip install 'flaxformer\[{name}\]'"):
        Job(output=tmp_path, track=(name,))


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(UserError, match="track is 'tensorbord'; did you mean 'tensorboard'"):
        Job(output=tmp_path, track=("tensorbord",))
    with pytest.raises(UserError, match="track has 3; expected a name of a tracker, or an object"):
        Job(output=tmp_path, track=(3,))
    with pytest.raises(UserError, match="two trackers of the name 'Failing'"):
        Job(output=tmp_path, track=(Failing(""), Failing("closed")))


OWN = """
import os
from flaxformer import Tracker, Run

PLACE = "numbers.txt"

class Lines(Tracker):
    def start(self, run):
        self.mode = os.environ["LINES_MODE"]
        self.file = open(run.folder / PLACE, self.mode)
        print(run.name, run.seed, run.config["optimizer"]["learning_rate"], file=self.file)

    def log(self, step, values):
        print(step, *(f"{name}={value}" for name, value in values.items()), file=self.file)

    def close(self):
        self.file.close()

class Needs(Tracker):
    def __init__(self, project):
        pass

run = Run()
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """A job's file with trackers of its own, loaded."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LINES_MODE", "w")
    load(path, "run", Run)
    yield path
    for name in [name for name in sys.modules if name.startswith("own@")]:
        del sys.modules[name]


def test_a_class_in_the_file_is_a_tracker_by_its_name(tmp_path, own_file):
    output = tmp_path / "job"
    output.mkdir()
    events = [Progressed("", 1, 2, 8, 2, 0.5, {"loss": [1.0, 0.5]}), Evaluated(2, {"validation_loss": 0.25})]
    assert list(record(iter(events), RUN, Job(output=output, track=("Lines",), file=own_file), 0)) == events
    written = (output / "numbers.txt").read_text()
    assert re.sub(r" training/goodput=0\.\d+", "", written).splitlines() == [
        "job 0 0.01",
        "1 training/loss=1.0",
        "2 training/loss=0.5 training/steps_per_second=4.0",
        "2 evaluation/validation_loss=0.25",
    ]


def test_a_tracker_reads_nothing_that_counts_for_the_results(tmp_path, own_file):
    output = tmp_path / "job"
    output.mkdir()
    list(record(iter(()), RUN, Job(output=output, track=("Lines",), file=own_file), 6))
    assert (output / "numbers.txt").exists()
    assert "LINES_MODE" not in {read.name for read in reads.all_reads()}


def test_names_near_those_of_the_file_are_offered(tmp_path, own_file):
    with pytest.raises(UserError, match=r"track is 'Line'; did you mean 'Lines'\?.* It has: .*trackio, Lines, Needs"):
        Job(output=tmp_path, track=("Line",), file=own_file)
    with pytest.raises(UserError, match=r"Needs\(\) has a missing a required argument: 'project'; expected a class"):
        Job(output=tmp_path, track=("Needs",), file=own_file)


def test_a_class_without_log_is_reported(tmp_path, caplog):
    class Empty(Tracker):
        pass

    launched(tmp_path, Empty())
    assert "NotImplementedError: Empty has no function log(step, values)" in caplog.text


@pytest.fixture
def trackio(tmp_path):
    """The names, config and numbers of all runs of trackio's project, read by a process of its own."""
    pytest.importorskip("trackio")
    program = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage
runs = trackio.Api().runs("flaxformer")
rows = {run.name: SQLiteStorage.get_logs("flaxformer", run.name) for run in runs}
print(json.dumps([[run.name, run.config, rows[run.name]] for run in runs]))
"""
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "database"), "HF_HUB_OFFLINE": "1"}

    def launch(*arguments, **steps):
        call = f"launched(*{arguments!r}, **{steps!r})".replace("PosixPath", "Path")
        launching = f"from pathlib import Path\nfrom jobs.test_trackers import launched\n{call}"
        command = [sys.executable, "-c", launching]
        return subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True)

    def runs():
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        return json.loads(done.stdout)

    return launch, runs


@pytest.mark.long
def test_trackio_has_one_run_per_job_with_every_number_once(tmp_path, trackio):
    launch, runs = trackio
    first = launch(tmp_path / "job", "trackio", until=5)
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    assert launch(tmp_path / "job", "trackio", since=3).returncode == 0
    ((name, config, rows),) = runs()
    assert name == "job-" + (tmp_path / "job" / "trackio" / "id").read_text()
    assert config["optimizer"]["learning_rate"] == 0.01
    found = [(key, row["step"], row[key]) for row in rows for key in row if "/" in key and key not in TIMES]
    assert len(found) == len({(key, step) for key, step, _ in found})
    assert {(key, step): value for key, step, value in found} == points(tmp_path / "job")
    assert launch(tmp_path / "other" / "job", "trackio").returncode == 0
    assert len(runs()) == 2
