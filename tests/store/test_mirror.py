"""Local copies of remote folders: what is stored, what is fetched, and what is refused."""

import os

import msgspec
import pytest
from store.bucket import URL, Bucket, Killed, read, texts, write, writer

from flaxformer.store import local_files, revisions
from flaxformer.store.local_files import UnstableError, scan, snapshot
from flaxformer.store.mirror import LostError, Mirror
from flaxformer.store.revisions import HeldError, RemoteFile
from flaxformer.system import digests
from flaxformer.system.errors import UserError

ROWS, LOG = "groups/a.jsonl", "declarations.jsonl"
STEP = {"weights/t/20/published.json": "marker", "weights/t/20/state/d/1": "array", "weights/t/20/state/manifest": "m"}


@pytest.fixture
def bucket(monkeypatch):
    return Bucket().install(monkeypatch)


def test_files_are_stored_and_fetched_with_their_times(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n", "study.json": "{}"} | STEP)
    os.utime(one.folder / "study.json", (1e9, 1e9))
    assert one.push() == 5
    assert read(tmp_path / "two") == {ROWS: "row 1\n", "study.json": "{}"} | STEP
    assert (tmp_path / "two" / "copy" / "study" / "study.json").stat().st_mtime == 1e9
    write(one.folder, {ROWS: "row 1\nrow 2\n", "study.json": None})
    assert one.push() == 2
    assert one.push() == 0
    assert read(tmp_path / "two") == {ROWS: "row 1\nrow 2\n"} | STEP


def test_only_the_newest_revision_and_its_objects_are_kept(bucket, tmp_path):
    one = writer(tmp_path / "one")
    for number in range(4):
        write(one.folder, {ROWS: "row\n" * (number + 1), LOG: "line\n"})
        one.push()
    kinds = [name.removeprefix(URL).split("/")[1] for name in sorted(bucket.objects)]
    assert kinds == ["objects", "objects", "revisions", "tables"]


def test_locks_leases_and_unpublished_steps_are_not_stored(bucket, tmp_path):
    one = writer(tmp_path / "one")
    left_out = {".lock": "", "leases/a.lease": "x", ".study.json.0f.tmp": "half", "groups/.refresh": ""}
    left_out |= {"weights/t/40/state/d/1": "half", "weights/t/40/state.orbax-checkpoint-tmp/d": "half"}
    write(one.folder, {ROWS: "row\n", "rungs/40/groups/b.jsonl": "row\n"} | STEP | left_out)
    one.push()
    assert read(tmp_path / "two") == {ROWS: "row\n", "rungs/40/groups/b.jsonl": "row\n"} | STEP


@pytest.mark.parametrize("name", ["stage", "state.json", "copy"])
def test_a_folder_may_be_named_as_the_files_beside_its_copy(bucket, tmp_path, name):
    process = Mirror(f"s3://bucket/{name}", tmp_path / "one")
    process.attach()
    write(process.folder, {ROWS: "row\n"})
    process.push()
    process.push()
    assert texts(process.folder) == {ROWS: "row\n"}


def test_a_link_in_the_folder_is_refused(bucket, tmp_path):
    one = writer(tmp_path / "one")
    (one.folder / "study.json").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match=r"study\.json is a symbolic link"):
        one.push()
    assert read(tmp_path / "two") == {}


def test_a_living_process_is_not_replaced_and_a_silent_one_is(bucket, tmp_path):
    one = writer(tmp_path / "one")
    bucket.while_asleep = one.push
    with pytest.raises(HeldError, match=f"{URL} is being written by process {os.getpid()} on "):
        writer(tmp_path / "two")
    bucket.while_asleep, before = lambda: None, bucket.now
    two = writer(tmp_path / "two")
    assert bucket.now - before >= revisions.EXPIRY * revisions.HEARTBEAT
    write(one.folder, {ROWS: "late\n"})
    with pytest.raises(LostError, match=f"another process has taken over {URL}.*{one.folder}"):
        one.push()
    assert one.is_lost
    write(two.folder, {ROWS: "row\n"})
    two.push()
    with pytest.raises(LostError):
        one.push(release=True)
    assert read(tmp_path / "three") == {ROWS: "row\n"}
    assert texts(one.folder) == {ROWS: "late\n"}


def test_a_process_of_this_machine_that_has_ended_is_replaced_at_once(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(revisions, "start_time", lambda pid: "0")  # of a process that had our number before
    writer(tmp_path / "one")
    monkeypatch.undo()
    bucket.install(monkeypatch)
    writer(tmp_path / "two")
    assert bucket.now == 0.0


def test_an_impatient_process_takes_no_folder_that_may_be_held(bucket, tmp_path):
    one = writer(tmp_path / "one")
    with pytest.raises(HeldError):
        Mirror(URL, tmp_path / "two").attach(is_patient=False)
    one.push(release=True)
    Mirror(URL, tmp_path / "two").attach(is_patient=False)


def test_what_a_process_did_not_store_is_stored_by_the_next(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n", LOG: "line\n"})
    one.push()
    write(one.folder, {ROWS: "row 1\nrow 2\n", LOG: None})
    again = writer(tmp_path / "one")
    assert texts(again.folder) == {ROWS: "row 1\nrow 2\n"}
    again.push()
    assert read(tmp_path / "two") == {ROWS: "row 1\nrow 2\n"}


def grown_on_both_sides(tmp_path, here, there):
    """A copy that has changed since its last revision, of a folder that another process has changed."""
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n"})
    one.push()
    write(one.folder, here)
    two = writer(tmp_path / "two")
    write(two.folder, there)
    two.push(release=True)


def test_a_copy_and_a_folder_that_have_both_changed_are_left_alone(bucket, tmp_path):
    grown_on_both_sides(tmp_path, {ROWS: "row 1\nrow 2\n"}, {"groups/b.jsonl": "row 2\n"})
    before = dict(bucket.objects)
    with pytest.raises(UserError, match=r"have both changed .*there: groups/b.jsonl; here: groups/a.jsonl.*move the"):
        writer(tmp_path / "one")
    assert texts(tmp_path / "one" / "copy" / "study") == {ROWS: "row 1\nrow 2\n"}
    assert read(tmp_path / "three") == {ROWS: "row 1\n", "groups/b.jsonl": "row 2\n"}
    kept = {name for name in before if "/revisions/" not in name}
    assert kept <= bucket.objects.keys()
    now = bucket.now
    writer(tmp_path / "four")
    assert bucket.now == now  # it is free at once
    (tmp_path / "one").rename(tmp_path / "aside")
    assert texts(writer(tmp_path / "one").folder) == {ROWS: "row 1\n", "groups/b.jsonl": "row 2\n"}


def test_equal_changes_on_both_sides_are_none(bucket, tmp_path):
    grown_on_both_sides(tmp_path, {ROWS: "row 1\nrow 2\n"}, {ROWS: "row 1\nrow 2\n"})
    assert texts(writer(tmp_path / "one").folder) == {ROWS: "row 1\nrow 2\n"}


def test_reports_on_both_sides_are_no_contradiction(bucket, tmp_path):
    here = {"report.html": "here", "figures/a.svg": "here", "results.csv": "here"}
    grown_on_both_sides(tmp_path, here, {"report.html": "there", LOG: "line\n"})
    one = writer(tmp_path / "one")
    assert texts(one.folder) == {ROWS: "row 1\n", LOG: "line\n"} | here | {"report.html": "there"}
    one.push()
    assert read(tmp_path / "three") == texts(one.folder)


def test_arrays_that_are_not_needed_stay_in_the_store(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, STEP | {ROWS: "row\n"})
    one.push(release=True)
    two = writer(tmp_path / "two", needs_arrays=False)
    assert texts(two.folder) == {"weights/t/20/published.json": "marker", ROWS: "row\n"}
    write(two.folder, {LOG: "line\n"})
    two.push(release=True)
    assert read(tmp_path / "three") == STEP | {ROWS: "row\n", LOG: "line\n"}
    again = writer(tmp_path / "two")  # now with arrays, and nothing has changed in either
    assert texts(again.folder) == STEP | {ROWS: "row\n", LOG: "line\n"}
    write(again.folder, dict.fromkeys(STEP))
    again.push()
    assert read(tmp_path / "three") == {ROWS: "row\n", LOG: "line\n"}


def test_arrays_that_were_never_fetched_are_no_change_of_the_remote_folder(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, STEP)
    one.push(release=True)
    write(writer(tmp_path / "two", needs_arrays=False).folder, {LOG: "line\n"})  # it ends before it stores this
    two = writer(tmp_path / "two")
    assert texts(two.folder) == STEP | {LOG: "line\n"}
    two.push()
    assert read(tmp_path / "three") == STEP | {LOG: "line\n"}


def test_arrays_of_a_step_that_is_removed_are_removed_though_never_fetched(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, STEP)
    one.push(release=True)
    two = writer(tmp_path / "two", needs_arrays=False)
    write(two.folder, {"weights/t/20/published.json": None})
    two.push()
    assert read(tmp_path / "three") == {}


def test_a_reader_drops_its_changes_and_keeps_its_reports(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row\n", LOG: "line\n"})
    one.push()
    read(tmp_path / "two")
    write(tmp_path / "two" / "copy" / "study", {LOG: "line\nmine\n", "report.html": "mine"})
    write(one.folder, {ROWS: None})
    one.push()
    assert read(tmp_path / "two") == {LOG: "line\n", "report.html": "mine"}


def test_a_reader_begins_again_when_the_folder_changes_while_it_reads(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n", LOG: "line\n"})
    one.push()

    def change(name, url):
        if name == "download":
            bucket.on_call = lambda *_: None
            write(one.folder, {ROWS: "row 1\nrow 2\n", LOG: "line\nline\n"})
            one.push()

    bucket.on_call = change
    assert read(tmp_path / "two") == {ROWS: "row 1\nrow 2\n", LOG: "line\nline\n"}


@pytest.mark.parametrize("damage", ["removed", "changed", "shorter"])
def test_damage_of_an_object_is_reported(bucket, tmp_path, damage):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n"})
    one.push(release=True)
    [name] = [name for name in bucket.objects if name.endswith(ROWS)]
    if damage == "removed":
        del bucket.objects[name]
    else:
        bucket.objects[name] = b"row 2\n" if damage == "changed" else b"row"
    for go in (lambda: read(tmp_path / "two"), lambda: writer(tmp_path / "three")):
        with pytest.raises(UserError, match=f"{URL} is damaged: .*{ROWS}"):
            go()
    assert texts(tmp_path / "two") == {"state.json": (tmp_path / "two" / "state.json").read_text()}


HOSTILE = ["../outside", "/outside", "a/../../outside", "groups/./x", "a//b", ".lock", "groups/.x", "leases/a.lease"]
HOSTILE += ["a\x1b[2Jb", "a\nb", "a\\b", "", "a/", "\udc80".encode(errors="replace").decode() * 400]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_that_leads_out_of_the_folder_is_refused(bucket, tmp_path, path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "row 1\n"})
    one.push(release=True)
    revision = revisions.newest(URL)
    push = revisions.push_name(revision.number + 1)
    files = {path: RemoteFile(push, 1, "0" * 32, 0.0)}
    digest = revisions.write_table(URL, push, files)
    following = msgspec.structs.replace(revision, number=revision.number + 1, table=push, table_digest=digest)
    assert revisions.append(URL, following)
    bucket.objects[f"{URL}/objects/{push}/{path}"] = b"x"
    for go in (lambda: read(tmp_path / "two"), lambda: writer(tmp_path / "three")):
        with pytest.raises(UserError, match="which is none of an output folder"):
            go()
    assert sorted(file.name for file in tmp_path.rglob("*outside*")) == []


def test_a_push_that_leads_elsewhere_is_refused(bucket, tmp_path):
    with pytest.raises(ValueError, match="matching regex"):
        msgspec.convert({"files": {"a": ["../x", 1, "0" * 32, 0.0]}}, dict[str, dict[str, RemoteFile]])


def test_a_store_without_conditional_writes_is_refused(monkeypatch, tmp_path):
    bucket = Bucket(is_conditional=False).install(monkeypatch)
    with pytest.raises(UserError, match="a store without conditional writes"):
        writer(tmp_path / "one")
    assert bucket.objects == {}


def test_an_empty_url_has_no_results(bucket, tmp_path):
    with pytest.raises(UserError, match=f"{URL} holds no results"):
        read(tmp_path / "one")


def test_damaged_state_is_reported(bucket, tmp_path):
    writer(tmp_path / "one").push(release=True)
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state\.json is damaged .* move "):
        writer(tmp_path / "one")


def test_damaged_revision_is_reported(bucket, tmp_path):
    writer(tmp_path / "one").push(release=True)
    [name] = [name for name in bucket.objects if "/revisions/" in name]
    bucket.objects[name] = bucket.objects[name].replace(b'"number": 2', b'"number": 3')
    with pytest.raises(UserError, match=r"revisions/0000000002\.json is damaged"):
        read(tmp_path / "two")


def test_snapshot_is_of_one_instant(tmp_path, monkeypatch):
    """Files that change between two readings are read again: no file is older than one that was written after it."""
    folder, first = tmp_path / "folder", {"a": "old", "b": "old"}
    write(folder, first)
    calls = []

    def change(text):
        write(folder, dict.fromkeys("ab", text))

    def changing(root):
        calls.append(root)
        if len(calls) == 4:  # between the copies and the second reading of the names
            change("the newest")
        stamps = scan(root)
        if len(calls) == 1:  # after the first reading of the names
            change("newer")
        return stamps

    monkeypatch.setattr(local_files, "scan", changing)
    monkeypatch.setattr(local_files, "PAUSE", 0.0)
    files = snapshot(folder, tmp_path / "stage", {})
    assert texts(tmp_path / "stage") == dict.fromkeys("ab", "the newest")
    assert {path: file.digest for path, (_, file) in files.items()} == dict.fromkeys(
        "ab", digests.digest(b"the newest", 16)
    )


def test_a_folder_that_never_rests_is_an_error(tmp_path, monkeypatch):
    folder, calls = tmp_path / "folder", []

    def changing(root):
        calls.append(root)
        write(folder, {"a": "x" * len(calls)})
        return scan(root)

    monkeypatch.setattr(local_files, "scan", changing)
    monkeypatch.setattr(local_files, "PAUSE", 0.0)
    with pytest.raises(UnstableError, match="changes faster than it can be read"):
        snapshot(folder, tmp_path / "stage", {})


SESSION = [{ROWS: "1\n"}, STEP | {ROWS: "1\n2\n"}, {ROWS: None, "groups/a.parquet": "1\n2\n"}]
"""Changes of a folder, each of which is stored."""


def session(place, changes=SESSION):
    process = writer(place)
    for change in changes:
        write(process.folder, change)
        process.push()
    process.push(release=True)


def states(changes=SESSION):
    """All contents that the folder has after some of its changes."""
    files, contents = {}, [{}]
    for change in changes:
        files = {path: text for path, text in (files | change).items() if text is not None}
        contents.append(files)
    return contents


def number_of_calls(tmp_path, bucket):
    bucket.number = 0
    session(tmp_path / "count")
    bucket.objects.clear()
    return bucket.number


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_a_kill_at_any_call_leaves_a_folder_that_is_whole_and_goes_on(bucket, tmp_path, how):
    calls = number_of_calls(tmp_path, bucket)
    assert calls > 30
    for at in range(1, calls + 1):
        bucket.objects.clear()
        here, elsewhere = tmp_path / f"here {at}", tmp_path / f"elsewhere {at}"
        with bucket.wrong(at, how), pytest.raises(Killed):
            session(here)
        there = read(tmp_path / f"reader {at}") if revisions.newest(URL) else {}
        assert there in states()
        local = texts(here / "copy" / "study") if (here / "copy" / "study").exists() else {}
        assert local in states()
        assert states().index(local) >= states().index(there)
        if at % 2:  # another machine goes on from what was stored
            assert texts(writer(elsewhere).folder) == there
        else:  # the same machine goes on from what it has
            process = writer(here)
            assert texts(process.folder) == local
            process.push(release=True)
            assert read(elsewhere) == local
            assert len([name for name in bucket.objects if "/objects/" in name]) == len(local)


@pytest.mark.long
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_failure_at_any_call_loses_nothing(bucket, tmp_path, how):
    calls = number_of_calls(tmp_path, bucket)
    for at in range(1, calls + 1):
        bucket.objects.clear()
        process = Mirror(URL, tmp_path / f"here {at}")
        failures = []

        def again(function, failures=failures):
            """Call a function again after a failure, of which there is one."""
            try:
                return function()
            except UserError as failure:
                failures.append(failure)
                return function()

        with bucket.wrong(at, how):
            again(process.attach)
            for change in SESSION:
                write(process.folder, change)
                again(process.push)
                with bucket.sound():
                    assert read(tmp_path / f"reader {at}") in states()
            again(lambda process=process: process.push(release=True))
        assert not [error for error in failures if isinstance(error, LostError)]
        assert read(tmp_path / f"reader {at}") == states()[-1]
        assert not revisions.newest(URL).owner


def test_a_push_whose_revision_was_made_before_a_kill_is_known_after_another_process(bucket, tmp_path):
    """The kill is between the revision and its note in the local state; then another machine goes on."""
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "1\n"})
    bucket.on_call = lambda name, url: name == "create" and "/revisions/" in url and end(bucket)
    with pytest.raises(Killed):
        one.push()
    bucket.on_call = lambda name, url: None
    bucket.at = 0
    for place, text in ((tmp_path / "two", "1\n2\n"), (tmp_path / "three", "1\n2\n3\n")):
        process = writer(place)
        write(process.folder, {ROWS: text})
        process.push(release=True)
    assert texts(writer(tmp_path / "one").folder) == {ROWS: "1\n2\n3\n"}


def end(bucket):
    bucket.number, bucket.at, bucket.how = 0, 1, "killed after"


def test_a_late_process_stores_nothing_though_its_next_number_is_free_again(bucket, tmp_path):
    one = writer(tmp_path / "one")
    two = writer(tmp_path / "two")
    for number in range(1, 4):
        write(two.folder, {ROWS: "row\n" * number})
        two.push()
    write(one.folder, {ROWS: "late\n"})
    with pytest.raises(LostError):
        one.push()
    assert read(tmp_path / "three") == {ROWS: "row\n" * 3}
    two.push(release=True)


def test_a_late_process_removes_nothing_of_the_one_that_took_over(bucket, tmp_path):
    """It is late when it looks for what earlier processes left."""
    writer(tmp_path / "zero").push(release=True)

    def overtake(name, url):
        if (name, url) == ("find", URL):
            bucket.on_call = lambda *_: None
            two = writer(tmp_path / "two")
            write(two.folder, {ROWS: "row\n"})
            two.push()

    bucket.on_call = overtake
    one = writer(tmp_path / "one")
    with pytest.raises(LostError):
        one.push(release=True)
    assert read(tmp_path / "three") == {ROWS: "row\n"}


def test_what_was_never_stored_is_known_by_its_content_after_a_kill(bucket, tmp_path):
    one = writer(tmp_path / "one")
    write(one.folder, {ROWS: "1\n"})
    one.push()
    write(one.folder, {ROWS: "1\n2\n"})
    bucket.on_call = lambda name, url: name == "upload" and end(bucket)
    with pytest.raises(Killed):
        one.push()
    bucket.on_call, bucket.at = lambda name, url: None, 0
    assert writer(tmp_path / "one").push() == 1
    assert read(tmp_path / "two") == {ROWS: "1\n2\n"}
