"""SLURM jobs whose process a signal ended, without SLURM: queued again, or given up with failed runs."""

import io
import signal

import pytest
from rich.console import Console
from study.tiny import LOWER, fill, tiny

from flaxformer.runner.launchers import resubmit
from flaxformer.runner.launchers.options import Share
from flaxformer.store.rows import Row
from flaxformer.store.store import Store


@pytest.fixture
def job(tmp_path):
    """A folder with a declared study, of which no run is trained."""
    study = tiny(claims=(LOWER,), seeds=range(2))
    store = fill(tmp_path / "results", study, lambda trial: 1.0)
    with store.locked():
        store.remove_rows(list(store.rows()))
    names = tuple(trial.name for trial in study.trials())
    (store.root / "launches").mkdir()
    return store, store.root, names


def killed(root):
    out = io.StringIO()
    again = resubmit.after_kill(root, Share(1, 1), signal.SIGKILL, Console(file=out, width=400))
    return again, out.getvalue()


def finished(store, name):
    declared = {trial.trial: trial for trial in store.declaration.trials}[name]
    row = Row(trial=name, group=declared.group, seed=declared.seed, status="done", labels=declared.labels)
    with store.locked():
        store.append(row.group, row)


@pytest.mark.every(3, "long")
@pytest.mark.parametrize(
    ("code", "state", "again", "counted"),
    [
        (137, "RUNNING", True, True),
        (139, "RUNNING", True, True),
        (134, "RUNNING", True, True),
        (143, "RUNNING", True, False),
        (130, "RUNNING", True, False),
        (140, "RUNNING", True, False),
        (137, "COMPLETING", False, False),
        (130, "COMPLETING", False, False),
        (143, "", False, False),
        (1, "RUNNING", False, False),
        (255, "RUNNING", False, False),
    ],
)
def test_job_that_a_signal_ended_is_queued_again(job, tmp_path, monkeypatch, code, state, again, counted):
    _, root, _ = job
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {state}\n")
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/asked\n")
    for name in ("squeue", "scontrol"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setattr("sys.argv", ["resubmit", str(root), "1/1", str(code)])
    assert resubmit.main() == 0
    assert (tmp_path / "asked").is_file() == again
    assert not again or (tmp_path / "asked").read_text() == "requeue 41\n"
    assert any(root.glob("launches/*.kills.json")) == counted


def test_a_job_without_progress_is_given_up_after_three_ends(job):
    store, root, names = job
    for attempt in (1, 2):
        again, said = killed(root)
        assert again
        assert f"queued again, {attempt} of 3 times without progress" in said
        assert store.rows() == {}
    again, said = killed(root)
    assert not again
    assert f"{len(names)} runs failed" in said
    rows = store.rows()
    assert sorted(rows) == sorted(names)
    assert {row.status for row in rows.values()} == {"failed"}
    assert all("SIGKILL" in str(row.cause) and "--slurm mem=" in str(row.cause) for row in rows.values())


def test_a_new_result_counts_as_progress(job):
    store, root, names = job
    for name in names[:5]:
        assert killed(root)[0]
        assert "1 of 3 times" in killed(root)[1].replace("2 of 3", "1 of 3")
        finished(store, name)
    assert {row.status for row in store.rows().values()} == {"done"}


def test_a_job_that_has_all_results_is_not_queued_again(job):
    store, root, names = job
    for name in names:
        finished(store, name)
    assert not killed(root)[0]


def test_only_the_program_that_was_being_trained_is_given_up(job, monkeypatch):
    store, root, names = job
    groups = {trial.trial: trial.group for trial in store.declaration.trials}
    held = groups[names[0]]
    monkeypatch.setattr(resubmit, "read_leases", lambda folder: [{"group": held}])
    monkeypatch.setattr(resubmit, "owner_is_gone", lambda lease: True)
    assert [killed(root)[0] for _ in range(3)] == [True, True, True]
    assert {row.group for row in Store(store.root).rows().values()} == {held}
    assert len(set(groups.values())) == 2
