"""`flaxformer status --watch`: progress, throughput, time left and estimates, until every run has ended."""

import dataclasses
import json

import pytest
from study.tiny import fill, tiny

from flaxformer.cli import main
from flaxformer.cli import status as command
from flaxformer.store.leases import Leases
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.study.program_groups import groups

STUDY = tiny()
TIMES = {"seconds": 30.0, "tokens_per_second": 1000.0, "group_size": 1}


def row(trial, number):
    """A finished run on one of two devices."""
    own = {"trial": trial.name, "group": group_of(trial), "seed": trial.seed, "status": "done", "diverged_at": None}
    metrics = {"validation_loss": 1.0 + trial.seed / 7, "initial_validation_loss": 9.0}
    curves = {"evaluated_at": [0, 6], "validation_loss_curve": [9.0, 1.0]}
    return own | trial.arm.labels | metrics | curves | TIMES | {"device": f"cpu:{number % 2}"}


def group_of(trial):
    return next(group.name for group in groups(STUDY.trials()) if trial.name in [own.name for own in group.trials])


@pytest.fixture
def begun(tmp_path):
    """A folder in which four of twelve runs have ended."""
    store = fill(tmp_path / "runs", STUDY, lambda trial: 1.0)
    for path in store.groups.iterdir():
        path.unlink()
    for number, trial in enumerate(STUDY.trials()[:4]):
        store.append(group_of(trial), row(trial, number))
    return store


def finish(store):
    for number, trial in enumerate(STUDY.trials()):
        store.append(group_of(trial), row(trial, number))


def test_time_left_and_throughput_count_living_processes_and_their_devices(begun):
    assert status(begun)["seconds_left"] is None  # nobody is at work
    group = groups(STUDY.trials())[-1]
    with Leases(begun.leases) as leases:
        leases.take(group.name, [trial.name for trial in group.trials])
        found = status(begun)
    assert (found["running"], found["missing"]) == (6, 2)
    assert found["tokens_per_second"] == 2 * 1000.0
    assert found["seconds_left"] == (6 + 2) * 30.0 / 2
    finish(begun)
    assert status(begun)["seconds_left"] == 0.0
    assert json.dumps(found)


def test_runs_in_a_batch_share_its_time(begun):
    trials = STUDY.trials()
    for number, trial in enumerate(trials[:4]):
        begun.append(group_of(trial), row(trial, number) | {"group_size": 3})
    group = groups(trials)[0]
    with Leases(begun.leases) as leases:
        leases.take(group.name, [trial.name for trial in group.trials])
        assert status(begun)["seconds_left"] == 8 * 10.0 / 2


def test_watching_a_pipe_prints_lines_until_all_runs_have_ended(begun, monkeypatch, capsys):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        finish(begun)

    monkeypatch.setattr(command.time, "sleep", nap)
    assert main(["status", str(begun.root), "--watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert naps == [command.SECONDS_BETWEEN_LINES]
    assert lines[0].startswith("4 of 12 runs finished")
    assert "no process is training" in " ".join(lines[:2])
    assert "12 of 12 runs finished" in lines
    assert sum("high is better than low:" in line for line in lines) == 2
    assert any("no seed yet" in line for line in lines)


def test_watching_in_a_terminal_shows_the_table_and_the_estimates(begun, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(command.time, "sleep", lambda seconds: finish(begun))
    assert main(["status", str(begun.root), "--watch"]) == 0
    out = capsys.readouterr().out
    assert "12 of 12 runs finished" in out
    assert "pre and post are alike" in out
    assert "3 seeds" in out


def test_ctrl_c_ends_watching_with_130(begun, monkeypatch, capsys):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", interrupted)
    assert main(["status", str(begun.root), "--watch"]) == 130


def test_a_view_of_a_study_without_claims_shows_progress_alone(tmp_path, capsys):
    store = fill(tmp_path / "runs", dataclasses.replace(STUDY, claims=()), lambda trial: 1.0)
    assert main(["status", str(store.root), "--watch"]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "12 of 12 runs finished"
    assert Store(store.root).declaration.claims == ()
