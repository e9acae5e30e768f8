"""Output folders in object storage as commands use them: errors, interruptions, and the thread that stores files."""

import errno
import os
import shutil
import signal
import threading

import pytest
from store.bucket import URL, Bucket, read, texts, write, writer

from flaxformer.store import remote, revisions
from flaxformer.store.mirror import LostError
from flaxformer.store.revisions import HeldError
from flaxformer.system import objects, remote_data
from flaxformer.system.errors import UserError

ROWS = "groups/a.jsonl"


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    monkeypatch.setenv(remote_data.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PERIOD", 0.01)
    return Bucket().install(monkeypatch)


def test_a_path_of_this_machine_is_left_alone(tmp_path):
    for opened in (remote.writing(tmp_path), remote.reading(tmp_path), remote.showing(tmp_path)):
        with opened as folder:
            assert folder == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_files_are_stored_while_the_command_works_and_at_its_end(bucket, tmp_path):
    lines, is_stored = [], threading.Event()
    bucket.on_call = lambda name, url: name == "delete" and is_stored.set()
    with remote.writing(URL, notify=lines.append) as folder:
        assert folder.name == "study"
        write(folder, {ROWS: "row 1\n"})
        assert is_stored.wait(20)
        write(folder, {ROWS: "row 1\nrow 2\n"})
    assert read(tmp_path / "reader") == {ROWS: "row 1\nrow 2\n"}
    assert not revisions.newest(URL).owner
    assert lines == [f"{URL} is written from its local copy, {folder}", f"{URL} has all files of {folder}"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, RuntimeError])
def test_what_there_is_is_stored_after_an_exception(bucket, tmp_path, error):
    def work():
        with remote.writing(URL, notify=[].append) as folder:
            write(folder, {ROWS: "row\n"})
            raise error("mine")

    with pytest.raises(error, match="mine"):
        work()
    assert read(tmp_path / "reader") == {ROWS: "row\n"}
    assert not revisions.newest(URL).owner


def test_a_store_that_fails_is_tried_again_and_is_an_error_at_the_end(bucket, tmp_path, monkeypatch):
    lines, failed = [], threading.Event()

    def unreachable(file, url):
        failed.set()
        raise UserError(f"{url} cannot be written: unreachable")

    upload = objects.upload
    monkeypatch.setattr(objects, "upload", unreachable)

    def work():
        with remote.writing(URL, notify=lines.append) as folder:
            write(folder, {ROWS: "row\n"})
            failed.wait(20)

    with pytest.raises(UserError, match="unreachable"):
        work()
    folder = remote.folder_of(URL)
    assert any("unreachable; it is tried again" in line for line in lines)
    assert texts(folder) == {ROWS: "row\n"}
    assert read(tmp_path / "reader") == {}
    monkeypatch.setattr(objects, "upload", upload)
    bucket.now += 1000  # of a process that ended, on another machine
    with remote.writing(URL, notify=lines.append):
        pass
    assert read(tmp_path / "reader") == {ROWS: "row\n"}


def test_a_disk_without_room_is_one_message(bucket, tmp_path, monkeypatch):
    lines, failed = [], threading.Event()

    def full(source, target, follow_symlinks):
        failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work():
        with remote.writing(URL, notify=lines.append) as folder:
            monkeypatch.setattr(shutil, "copyfile", full)
            write(folder, {ROWS: "row\n"})
            failed.wait(20)

    with pytest.raises(UserError, match=r"cannot be written: No space left on device.* run again"):
        work()
    monkeypatch.undo()
    assert texts(next((tmp_path / "cache" / "written").glob("*/copy/study"))) == {ROWS: "row\n"}


def test_an_exception_is_raised_though_the_store_fails_too(bucket, monkeypatch):
    lines = []

    def unreachable(url, data):
        raise UserError("unreachable")

    def work():
        with remote.writing(URL, notify=lines.append) as folder:
            monkeypatch.setattr(objects, "create", unreachable)
            write(folder, {ROWS: "row\n"})
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()
    assert lines[-1] == f"unreachable; what is not stored is in {remote.folder_of(URL)}"


def test_a_process_that_was_replaced_stops_and_says_so(bucket, tmp_path):
    lines, others = [], []

    def work():
        with remote.writing(URL, notify=lines.append):
            others.append(take_over(bucket, tmp_path))
            threading.Event().wait(20)  # until the thread interrupts

    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # that of a command notes that it was called
    try:
        with pytest.raises(LostError, match="has taken over"):
            work()
    finally:
        signal.signal(signal.SIGINT, former)
    assert "has taken over" in lines[-1]
    revision = revisions.newest(URL)
    assert revision.number > 1
    assert revision.owner


def take_over(bucket, tmp_path):
    """Let another machine take over the folder."""
    with bucket.lock:  # this one is suspended for a while
        bucket.while_asleep = lambda: None
        return writer(tmp_path / "other")


def test_a_second_process_of_this_machine_is_refused(bucket):
    with (
        remote.writing(URL, notify=[].append),
        pytest.raises(HeldError, match="another process is writing s3://"),
        remote.writing(URL),
    ):
        raise AssertionError


def test_results_are_shown_from_a_copy_while_another_process_writes(bucket, tmp_path):
    lines = []
    with pytest.raises(UserError, match="holds no results"), remote.showing(URL):
        raise AssertionError
    other = writer(tmp_path / "other")
    write(other.folder, {ROWS: "row\n"})
    other.push()
    with remote.showing(URL, notify=lines.append) as folder:
        write(folder, {"declarations.jsonl": "shown\n"})
        assert texts(folder)[ROWS] == "row\n"
    assert "its newest revision is shown, and nothing is recorded" in lines[-1]
    assert read(tmp_path / "reader") == {ROWS: "row\n"}
    other.push(release=True)
    with remote.showing(URL, notify=lines.append) as folder:
        write(folder, {"declarations.jsonl": "shown\n"})
    assert read(tmp_path / "reader") == {ROWS: "row\n", "declarations.jsonl": "shown\n"}


def test_a_reader_follows_the_folder(bucket, tmp_path):
    other = writer(tmp_path / "other")
    write(other.folder, {ROWS: "row 1\n"})
    other.push()
    fetched = threading.Event()
    with remote.reading(URL, follows=True) as folder:
        assert texts(folder) == {ROWS: "row 1\n"}
        write(other.folder, {ROWS: "row 1\nrow 2\n"})
        other.push()
        for _ in range(1000):
            if texts(folder) == {ROWS: "row 1\nrow 2\n"}:
                break
            fetched.wait(0.02)
        assert texts(folder) == {ROWS: "row 1\nrow 2\n"}


def test_weights_of_a_bucket_are_an_output_folder_or_files(bucket, tmp_path):
    other = writer(tmp_path / "other")
    write(other.folder, {"weights/t/20/published.json": "m", "weights/t/20/state/a": "array"})
    other.push(release=True)
    assert texts(remote.find_folder(URL)) == texts(other.folder)
    bucket.objects["s3://bucket/model/model.safetensors"] = b"tensors"
    assert texts(remote.find_folder("s3://bucket/model")) == {"model.safetensors": "tensors"}
    assert remote.find_folder("s3://bucket/model/model.safetensors").read_bytes() == b"tensors"
    assert remote.find_folder(tmp_path) == tmp_path
