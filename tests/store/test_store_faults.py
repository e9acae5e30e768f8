"""Whatever happens to a folder and to those who work on it, in the end its results are those of an undisturbed run."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from study import faults
from study.faults import STUDY, TRIALS, results, train
from study.tiny import FILE, fill, run, tiny

from flaxformer.cli import main
from flaxformer.cli import run as commands
from flaxformer.components import POST, PRE
from flaxformer.core.paths import replace_at
from flaxformer.report.files import write
from flaxformer.runner import launch
from flaxformer.runner.events import Finished, Message
from flaxformer.store import leases, records
from flaxformer.store.rows import Row
from flaxformer.store.status import status
from flaxformer.store.store import Store, read_lines
from flaxformer.study import Axis
from flaxformer.study.program_groups import groups
from flaxformer.system import digests
from flaxformer.system.errors import UserError

OTHER = replace_at(STUDY.baseline, {"optimizer.beta2": 0.99})


@pytest.fixture(autouse=True)
def _arithmetic(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    faults.use(monkeypatch)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder in which nothing went wrong, what it says, and one whose groups are not merged yet."""
    with pytest.MonkeyPatch.context() as patch:
        faults.use(patch)
        root = tmp_path_factory.mktemp("whole")
        train(root)
        under_way = tmp_path_factory.mktemp("under_way")
        patch.setattr(Store, "finish", lambda *_: None)
        train(under_way)
    return root, results(root), under_way


def trained(events):
    return [event.row["trial"] for event in events if isinstance(event, Finished)]


def told(events):
    return " ".join(event.text for event in events if isinstance(event, Message))


def declared(root):
    """The declaration without the digest of the log's last entry, which depends on the time."""
    return replace(Store(root).declaration, declaration="")


def is_whole(root, whole):
    """The results of the undisturbed run, no row lost or doubled, nobody at work, and a report."""
    assert results(root) == whole[1]
    tables = [row["trial"] for path in Store(root).groups.glob("*.parquet") for row in records.read_table(path)]
    assert sorted(tables) == sorted(TRIALS)
    assert not list((root / "groups").glob("*.jsonl"))
    assert not list((root / "leases").glob("*.lease"))


def test_the_undisturbed_run_is_whole_and_each_row_has_its_fingerprint(whole):
    is_whole(whole[0], whole)
    prints = Store(whole[0]).declaration.fingerprints
    assert {trial: row["fingerprint"] for trial, row in whole[1].items()} == prints
    assert results(whole[2]) == whole[1]


# --- files that are not what was written -------------------------------------------------------------------


def lines_file(root):
    return sorted((root / "groups").glob("*.jsonl"))[0]


def table_file(root):
    return sorted((root / "groups").glob("*.parquet"))[0]


STEPS = [pytest.param(23, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_no_byte_of_a_line_can_be_lost_or_changed_unnoticed(whole, tmp_path, fault, step):
    written = lines_file(whole[2]).read_bytes().splitlines(keepends=True)[:2]
    data, path, rows = b"".join(written), tmp_path / "lines.jsonl", read_lines(lines_file(whole[2]))[:2]
    ends = {place + near for place in (len(written[0]), len(data)) for near in (-2, -1, 0) if place + near < len(data)}
    for place in sorted({*range(0, len(data), step), *ends}):
        path.write_bytes(changed(data, place, fault))
        found, wrong = digests.lines(path)
        whole_lines = data[:place].count(b"\n")
        if fault == "cut":
            assert (found, wrong) == (rows[:whole_lines], [])
        elif place == len(written[0]) - 1:  # two lines become one
            assert (found, len(wrong)) == ([], 1)
        else:
            assert found == rows[1 - whole_lines : 2 - whole_lines]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_no_byte_of_a_table_can_be_lost_or_changed_unnoticed(whole, tmp_path, fault, step):
    source, path = table_file(whole[0]), tmp_path / "x.parquet"
    data, rows = source.read_bytes(), records.read_table(source)
    for place in range(0, len(data), step):
        path.write_bytes(changed(data, place, fault))
        try:
            assert records.read_table(path) == rows
        except records.DamagedError:
            continue
        assert data[place - 60 : place + 60].count(b"flaxformer:"), place  # of what says that there is a digest


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_no_byte_of_a_declaration_can_be_lost_or_changed_unnoticed(whole, tmp_path, fault, step):
    data, declaration = (whole[0] / "study.json").read_bytes(), Store(whole[0]).declaration
    for place in range(0, len(data), step):
        (tmp_path / "study.json").write_bytes(changed(data, place, fault))
        try:
            found = Store(tmp_path).declaration
        except UserError as error:
            assert "study.json is damaged" in str(error)  # noqa: PT017
            continue
        assert {name: found[name] for name in declaration} == declaration
        assert fault == "flip"
        assert bytes([data[place]]).isspace() or data[max(place - 9, 0) : place + 99].count(b"digest")


def changed(data, place, fault):
    return data[:place] if fault == "cut" else data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGES = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "empty": lambda data: b"",
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"\xffnot what it was\n" * 3,
}


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["lines", "table", "study.json", "launches.jsonl"])
def test_damaged_files_are_set_aside_and_only_their_rows_are_trained_again(whole, tmp_path, kind, damage):
    root = shutil.copytree(whole[2] if kind == "lines" else whole[0], tmp_path / "study")
    path = {"lines": lines_file, "table": table_file}.get(kind, lambda root: root / kind)(root)
    held = {row["trial"] for row in (read_lines(path) if kind == "lines" else ())}
    held |= {row["trial"] for row in (records.read_table(path) if kind == "table" else ())}
    bad = DAMAGES[damage](path.read_bytes())
    path.write_bytes(bad)
    lost = set(TRIALS) - set(results(root))
    events = train(root)
    assert set(trained(events)) == lost <= held
    assert bool(lost) == (kind in ("lines", "table"))
    is_whole(root, whole)
    assert declared(root) == declared(whole[0])
    bad_line = path.suffix != ".jsonl" or damage in ("flipped", "text")  # an unfinished line alone is dropped
    assert [one.read_bytes() for one in root.rglob("*.damaged*")] == ([bad] if bad_line else [])
    assert bad_line == ("is damaged" in told(events))
    assert trained(train(root)) == []


def test_another_recipe_is_refused_when_the_declaration_is_lost(whole, tmp_path):
    root = shutil.copytree(whole[0], tmp_path / "study")
    (root / "study.json").write_text('{"name": "ti')
    with pytest.raises(UserError, match=r"another recipe for 'norm=\w+,rate=\w+,seed=\d': fingerprint"):
        train(root, tiny(axes=STUDY.axes, seeds=STUDY.seeds, claims=(), baseline=OTHER))
    assert results(root) == whole[1]


# --- kills, at every write -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_study_resumes_after_a_kill_at_any_write(whole, tmp_path, monkeypatch, step):
    """What the disk holds before each system call that changes it is what a kill there would leave."""
    root, snapshots, one_at_a_time = tmp_path / "study", [], threading.RLock()  # leases are renewed by a thread
    writes, copying = itertools.count(), []

    def watched(module, name):
        original = getattr(module, name)

        def call(*arguments, **options):
            with one_at_a_time:
                is_ours = (root.exists() and str(root) in str(arguments[0])) or isinstance(arguments[0], int)
                # The copy reads files, which is recorded in the folder.
                if is_ours and not copying and next(writes) % step == 0:
                    copying.append(True)
                    snapshots.append(shutil.copytree(root, tmp_path / f"{len(snapshots)}", symlinks=True))
                    copying.clear()
                return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "write"), (Path, "replace"), (Path, "unlink")):
            patch.setattr(module, name, watched(module, name))
        train(root)
    is_whole(root, whole)
    monkeypatch.setattr(leases, "owner_is_gone", lambda lease: True)
    assert next(writes) >= 3 * len(TRIALS) // 2
    for snapshot in snapshots:
        before = results(snapshot)
        assert before.items() <= whole[1].items()
        assert set(trained(train(snapshot))) == set(TRIALS) - set(before)
        is_whole(snapshot, whole)


def test_a_full_disk_gives_one_message_and_the_study_resumes(whole, tmp_path, monkeypatch):
    write, budget = os.write, [0]

    def full(file, data):
        budget[0] -= len(data)
        if budget[0] >= 0:
            return write(file, data)
        if budget[0] + len(data) > 0:
            return write(file, data[: budget[0] + len(data)])  # some of it fits
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for size in (0, 100, 700, 1500, 2500):
        root, budget[0] = tmp_path / str(size), size
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(UserError, match=r"cannot be (written|locked): No space left on device; "):
                train(root)
        assert results(root).items() <= whole[1].items()
        assert all(path.read_bytes()[-1:] in (b"", b"\n") for path in root.rglob("*.jsonl"))
        train(root)
        is_whole(root, whole)


@pytest.mark.parametrize("what", ["study.json", "parquet"])
def test_a_disk_that_fills_while_a_file_is_replaced_keeps_the_old_one(whole, tmp_path, monkeypatch, what):
    root, replace = tmp_path / "study", Path.replace

    def full(self, target):
        if str(target).endswith(what):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match=f"{what} cannot be written: No space left on device"):
            train(root)
    assert not list(root.rglob("*.tmp"))
    train(root)
    is_whole(root, whole)


# --- several at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_that_start_together_share_the_work_and_write_one_table(whole, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(launch, "POLL", 0.01)
    faults.use(monkeypatch, seconds=0.01)
    barrier, events = threading.Barrier(workers), [[] for _ in range(workers)]

    def work(own):
        barrier.wait()
        own += train(tmp_path)

    threads = [threading.Thread(target=work, args=(own,)) for own in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(trial for own in events for trial in trained(own)) == sorted(TRIALS)
    is_whole(tmp_path, whole)
    assert len(read_lines(tmp_path / "launches.jsonl")) == workers


def stale(root, group, trials):
    """The lease of a process of this machine that is no more."""
    (root / "leases").mkdir(parents=True, exist_ok=True)
    said = {"token": "x", "host": "here", "pid": 2**22 + 1, "born": "5", "machine": leases.machine(), "started": 0.0}
    (root / "leases" / f"{group}.lease").write_text(json.dumps(said | {"heartbeat": 10.0, "trials": trials}))


def test_the_lease_of_an_ended_process_is_removed_at_once(whole, tmp_path):
    for group in groups(STUDY.trials()):
        stale(tmp_path, group.name, [trial.name for trial in group.trials])
    assert len(trained(train(tmp_path))) == len(TRIALS)
    is_whole(tmp_path, whole)


def test_a_worker_waits_for_leases_of_others_and_takes_over_when_they_expire(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "POLL", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT", 0.5)  # long beside the work of the other group
    own = groups(STUDY.trials())[0]
    stale(tmp_path, own.name, [trial.name for trial in own.trials])
    path = tmp_path / "leases" / f"{own.name}.lease"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "far", "host": "far", "heartbeat": 0.5}))
    events = train(tmp_path)
    waited = next(i for i, event in enumerate(events) if isinstance(event, Message) and "waiting" in event.text)
    assert f"{own.name} by process {2**22 + 1} on far" in events[waited].text
    assert set(trained(events[:waited])) == {c for c in TRIALS if c not in {trial.name for trial in own.trials}}
    is_whole(tmp_path, whole)


def test_two_owners_of_one_trial_leave_one_row(whole, tmp_path, monkeypatch):
    """As when one was suspended for long, and goes on after another has taken its lease over."""
    first = run(STUDY, launch.Execution(output=tmp_path, devices=1))
    assert isinstance(next(event for event in first if isinstance(event, Finished)), Finished)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "owner_is_gone", lambda lease: True)
        train(tmp_path)
    is_whole(tmp_path, whole)
    list(first)
    is_whole(tmp_path, whole)


def test_a_group_that_is_merged_while_it_is_read_is_not_missed(whole, tmp_path, monkeypatch):
    """The lines are read, then another process merges them, then the tables are read; and the other way round."""
    root, glob = shutil.copytree(whole[2], tmp_path / "study"), Path.glob

    def merge_first(self, pattern, **how):
        if merging.pop(pattern, False):
            for group in groups(STUDY.trials()):
                Store(root).finish(group.name)
        return glob(self, pattern, **how)

    for pattern in ("*.jsonl", "*.parquet"):
        merging = {pattern: True}
        monkeypatch.setattr(Path, "glob", merge_first)
        assert results(root) == whole[1]
        assert merging == {}


def test_trials_finished_before_their_lease_was_taken_are_not_trained_again(whole, tmp_path, monkeypatch):
    take = leases.Leases.take

    def late(self, *arguments):
        monkeypatch.setattr(leases.Leases, "take", take)
        train(tmp_path)
        return self.take(*arguments)

    monkeypatch.setattr(leases.Leases, "take", late)
    assert trained(train(tmp_path)) == []
    is_whole(tmp_path, whole)


def test_a_failure_does_not_hide_a_result(tmp_path):
    done = Row(trial="a", group="g", seed=0, status="done", metrics={"loss": 1.0})
    failed = dataclasses.replace(done, status="failed", metrics={})
    for rows in ([done, failed], [failed, done]):
        stores = [Store(tmp_path, worker=12 * digit) for digit in "01"]
        for store, row in zip(stores, rows, strict=True):
            with store.locked():
                store.append("g", row)
        assert Store(tmp_path).rows() == {"a": done}
        stores[0].finish("g")
        assert {name: row["status"] for name, row in Store(tmp_path).rows().items()} == {"a": "done"}
        shutil.rmtree(tmp_path / "groups")


# --- what a launch is asked for --------------------------------------------------------------------------------


def test_only_the_named_trials_are_trained(whole, tmp_path):
    assert sorted(trained(train(tmp_path, only=TRIALS[:3]))) == sorted(TRIALS[:3])
    assert sorted(trained(train(tmp_path, only=TRIALS[2:5]))) == sorted(TRIALS[3:5])
    assert not list((tmp_path / "leases").glob("*.lease"))
    with pytest.raises(UserError, match="only names the trial 'x'"):
        train(tmp_path, only=["x"])
    train(tmp_path)
    is_whole(tmp_path, whole)


def test_shares_of_one_group_are_trained_at_the_same_time(whole, tmp_path):
    shares = [TRIALS[0::2], TRIALS[1::2]]
    runs = [run(STUDY, launch.Execution(output=tmp_path, devices=1), only=share) for share in shares]
    rows = [[next(event for event in one if isinstance(event, Finished)).row["trial"]] for one in runs]
    for own, one in zip(rows, runs, strict=True):
        own += trained(one)
    assert [sorted(own) for own in rows] == [sorted(share) for share in shares]
    train(tmp_path)
    is_whole(tmp_path, whole)


def test_a_failed_run_is_trained_again_when_asked_for_and_errors_can_stop(whole, tmp_path, monkeypatch):
    bad = {TRIALS[0], TRIALS[-1]}
    with monkeypatch.context() as patch:
        faults.use(patch, broken=bad)
        events = train(tmp_path / "stop", on_error="stop")
        assert [e.row["status"] for e in events if isinstance(e, Finished)].count("failed") == 1
        assert not list((tmp_path / "stop" / "leases").glob("*.lease"))
        train(tmp_path)
        assert trained(train(tmp_path)) == []
        assert set(trained(train(tmp_path, retry_failed=True))) == bad
        assert {trial for trial, row in results(tmp_path).items() if row["status"] == "failed"} == bad
    assert set(trained(train(tmp_path, retry_failed=True))) == bad
    assert {c: {k: row[k] for k in whole[1][c]} for c, row in results(tmp_path).items()} == whole[1]
    with pytest.raises(UserError, match="on_error is 'pause'; expected continue or stop"):
        train(tmp_path, on_error="pause")


# --- what strangers may put there ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["groups", "leases"])
def test_folders_that_are_links_are_refused(tmp_path, folder):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{folder} is a symbolic link"):
        train(tmp_path / "study")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", [".lock", "launches.jsonl", "study.json", "declarations.head", "a table"])
@pytest.mark.parametrize("act", [train, lambda root: Store(root).declaration], ids=["train", "read"])
def test_files_that_are_links_are_refused_by_name(whole, tmp_path, name, act):
    root = shutil.copytree(whole[0], tmp_path / "study")
    path, precious = table_file(root) if name == "a table" else root / name, tmp_path / "precious"
    path.rename(precious)
    path.symlink_to(precious)
    before = precious.read_bytes()
    if name == ".lock" and act is not train:  # readers take no lock
        assert act(root)
    else:
        with pytest.raises(UserError, match=f"{path} is a symbolic link; expected a file of its own"):
            act(root)
    assert path.is_symlink()
    assert precious.read_bytes() == before


def test_rows_in_a_linked_file_are_refused_without_a_declaration(whole, tmp_path):
    root = shutil.copytree(whole[0], tmp_path / "study")
    table_file(root).rename(tmp_path / "precious")
    table_file_at = root / "groups" / "b.parquet"
    table_file_at.symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"b\.parquet is a symbolic link"):
        Store(root).rows()


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc/x", "a/b", ".hidden", "a\0b", "a\\b", "x" * 300])
def test_a_group_cannot_be_named_like_a_path(tmp_path, name):
    store = Store(tmp_path)
    with store.locked(), pytest.raises(UserError, match="group is named"):
        store.append(name, Row(trial="a", group=name, seed=0, status="done"))
    assert not list(tmp_path.parent.glob("x*"))


def test_no_label_leads_out_of_the_folder_or_makes_a_name_too_long(tmp_path):
    labels = {"../../out": PRE, "/etc/passwd\n": POST}
    for axis in (
        Axis("model.norm", labels, name=".."),
        Axis("model.norm", {"\U0001d400" * 90: PRE, "b": POST}, name="x"),
    ):
        root = tmp_path / "deep" / "down" / axis.name.strip(".")
        train(root, tiny(axes=(axis,), seeds=range(2), claims=()))
        assert len(results(root)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert all(path.resolve().is_relative_to(tmp_path) for path in tmp_path.rglob("*"))


MALFORMED = [b"", b"[]", b"7", b"null", b'{"format": 3}', b'{"format": 3, "trials": 3, "recipes": {}}', b"[" * 9999]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_declaration_is_one_clear_message(tmp_path, text):
    (tmp_path / "study.json").write_bytes(text)
    for read in (status, write):
        with pytest.raises(UserError, match=r"study\.json is damaged"):
            read(Store(tmp_path))


def test_malformed_rows_are_ignored_and_reported(whole, tmp_path):
    root = shutil.copytree(whole[0], tmp_path / "study")
    rows = ["7", "[]", "{}", '{"trial": []}', '{"trial": "a", "status": "great"}', '{"status": "done"}', "[" * 9999]
    (root / "groups" / "strange.jsonl").write_text("\n".join(rows) + "\n")
    (root / "groups" / "strange.0123456789ab.jsonl").write_text('{"trial": "a", "status": "done"}\n')
    (root / "groups" / "folder.parquet").mkdir()
    (root / "groups" / "odd.parquet").write_bytes(b"PAR1" * 9)
    records.write_table(root / "groups" / "other.parquet", [{"x": 1}])
    assert results(root) == whole[1]
    assert len(Store(root).rows()) == len(TRIALS)
    found = status(Store(root))
    assert (found["done"], found["missing"]) == (len(TRIALS), 0)
    assert {Path(name).name for name in found["damaged"]} == {
        "strange.jsonl", "strange.0123456789ab.jsonl", "odd.parquet", "other.parquet",
    }  # fmt: skip
    assert trained(train(root)) == []


# --- status ----------------------------------------------------------------------------------------------------


def test_status_counts_what_became_of_every_trial(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        faults.use(patch, broken={TRIALS[0]})
        train(tmp_path, only=TRIALS[:3])
    with leases.Leases(tmp_path / "leases") as held:
        last = groups(STUDY.trials())[-1]
        held.take(last.name, [trial.name for trial in last.trials])
        stale(tmp_path, groups(STUDY.trials())[0].name, TRIALS[:4])
        found = status(Store(tmp_path))
    counts = {"declared": 8, "done": 2, "diverged": 0, "stopped": 0, "failed": 1, "running": 4, "missing": 1}
    assert {name: found[name] for name in counts} == counts
    assert [own["declared"] for own in found["groups"]] == [4, 4]
    assert [own["running"] for own in found["groups"]] == [0, 4]
    assert {lease["state"]: lease["trials"] for lease in found["leases"]} == {"alive": 4, "gone": 4}
    assert found["trials"]["failed"] == [TRIALS[0]]
    assert found["groups"][0]["seconds_since_last_row"] < 60
    assert status(Store(whole[0]))["done"] == len(TRIALS)


def test_status_reads_the_folder_alone(tmp_path, monkeypatch, capsys):
    store = fill(tmp_path / "runs", tiny(), lambda trial: 1.0 + trial.seed / 9)
    bomb = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\nraise SystemExit(3)\n"
    for place in (tmp_path, store.root, store.groups):
        for name in ("tiny.py", "study.py", "flaxformer_study.py"):
            (place / name).write_text(bomb)
    monkeypatch.chdir(tmp_path)
    assert main(["status", "runs"]) == 0
    assert "12" in capsys.readouterr().out
    assert main(["status", "runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 12
    assert not (tmp_path / "imported").exists()
    assert main(["status", "nowhere"]) == 2


def test_the_command_retries_and_stops_when_asked_to(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "show_report", lambda store, *_: len(status(store)["trials"]["failed"]))
    (tmp_path / "tiny.py").write_text(FILE)
    command = ["run", "tiny.py", "--devices", "1", "--output", "runs"]
    with monkeypatch.context() as patch:
        faults.use(patch, broken=set(TRIALS))
        assert main([*command, "--on-error", "stop"]) == 1
        assert "stopped after the first run that failed" in capsys.readouterr().out
        assert main(command) == 1
        assert "failed" in capsys.readouterr().out
    assert main(command) == 1
    assert "0 runs to train" in capsys.readouterr().out
    assert main([*command, "--retry-failed"]) == 0
    assert status(Store(tmp_path / "runs"))["done"] == 12
    with pytest.raises(SystemExit) as refused:
        main([*command, "--on-error", "pause"])
    assert refused.value.code == 2
