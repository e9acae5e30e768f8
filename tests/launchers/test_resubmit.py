"""SLURM jobs whose process a signal ended, without SLURM: queued again, or given up with failed runs."""

import io
import signal

import pytest
from rich.console import Console
from study.tiny import LOWER, fill, tiny

from flaxformer.launchers import resubmit
from flaxformer.launchers.payload import Payload, private
from flaxformer.runner.execution import Execution
from flaxformer.store.rows import Row
from flaxformer.store.store import Store


@pytest.fixture
def job(tmp_path):
    """A folder with a declared study, of which no run is trained, and the payload of a job that has all of them."""
    study = tiny(claims=(LOWER,), seeds=range(2))
    store = fill(tmp_path / "results", study, lambda trial: 1.0)
    with store.locked():
        store.remove_rows(list(store.rows()))
    names = tuple(trial.name for trial in study.trials())
    path = private(store.root / "launches") / "slurm-0.json"
    private(path.with_suffix(""))
    Payload(file=tmp_path / "tiny.py", jobs=(names,), execution=Execution(output=store.root)).write(path)
    return store, path, names


def killed(path):
    out = io.StringIO()
    return resubmit.after_kill(path, 0, signal.SIGKILL, Console(file=out, width=400)), out.getvalue()


def finished(store, name):
    declared = {trial.trial: trial for trial in store.declaration.trials}[name]
    row = Row(trial=name, group=declared.group, seed=declared.seed, status="done", labels=declared.labels)
    with store.locked():
        store.append(row.group, row)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (137, signal.SIGKILL),
        (139, signal.SIGSEGV),
        (134, signal.SIGABRT),
        (143, None),
        (130, None),
        (1, None),
        (255, None),
    ],
)
def test_only_signals_that_are_no_requests_count(code, found):
    assert resubmit.killed_by(code) == found


def test_a_job_without_progress_is_given_up_after_three_ends(job):
    store, path, names = job
    for attempt in (1, 2):
        again, said = killed(path)
        assert again
        assert f"queued again, {attempt} of 3 times without progress" in said
        assert store.rows() == {}
    again, said = killed(path)
    assert not again
    assert f"{len(names)} runs failed" in said
    rows = store.rows()
    assert sorted(rows) == sorted(names)
    assert {row.status for row in rows.values()} == {"failed"}
    assert all("SIGKILL" in str(row.cause) and "--slurm mem=" in str(row.cause) for row in rows.values())


def test_a_new_result_counts_as_progress(job):
    store, path, names = job
    for name in names[:5]:
        assert killed(path)[0]
        assert "1 of 3 times" in killed(path.with_name(path.name))[1].replace("2 of 3", "1 of 3")
        finished(store, name)
    assert {row.status for row in store.rows().values()} == {"done"}


def test_a_job_that_has_all_results_is_not_queued_again(job):
    store, path, names = job
    for name in names:
        finished(store, name)
    assert not killed(path)[0]


def test_only_the_program_that_was_being_trained_is_given_up(job, monkeypatch):
    store, path, names = job
    groups = {trial.trial: trial.group for trial in store.declaration.trials}
    held = groups[names[0]]
    monkeypatch.setattr(resubmit, "read_leases", lambda folder: [{"group": held}])
    monkeypatch.setattr(resubmit, "owner_is_gone", lambda lease: True)
    assert [killed(path)[0] for _ in range(3)] == [True, True, True]
    assert {row.group for row in Store(store.root).rows().values()} == {held}
    assert len(set(groups.values())) == 2
