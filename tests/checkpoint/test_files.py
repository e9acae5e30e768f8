"""Atomic replacement and removal of files."""

import contextlib
import os
import threading
import time

import pytest

from flaxformer.system import files


@pytest.mark.parametrize(("module", "call"), [(os, "fsync"), (files.Path, "replace")])
def test_file_is_replaced_atomically(tmp_path, monkeypatch, module, call):
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    seen = []

    def power_fails(*_):
        seen.append(path.read_bytes())
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module, call, power_fails)
        with pytest.raises(OSError, match="Input/output"):
            files.write_atomically(path, b"new")
    assert seen == [b"old"]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_symbolic_link_and_its_target_are_not_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "marker").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic link"):
        files.remove(tmp_path / "link", "marker")
    assert (tmp_path / "mine" / "marker").read_text() == "mine"


def test_marker_is_removed_before_other_files(tmp_path, monkeypatch):
    folder = tmp_path / "7"
    (folder / "state").mkdir(parents=True)
    (folder / "marker").write_text("published")
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", lambda path: None)  # killed here
        files.remove(folder, "marker")
    assert os.listdir(folder) == ["state"]
    files.remove(folder, "marker")
    files.remove(folder, "marker")
    assert os.listdir(tmp_path) == []


def test_files_written_during_removal_are_removed_too(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()

    def late():
        for n in range(20):
            with contextlib.suppress(OSError):
                (folder / "state").mkdir(parents=True, exist_ok=True)
                (folder / "state" / str(n)).write_text("late")
            time.sleep(0.01)

    thread = threading.Thread(target=late)
    thread.start()
    files.remove(folder, "marker", settle=2.0)
    thread.join()
    assert os.listdir(tmp_path) == []


def test_set_aside_replaces_no_former_folder(tmp_path):
    for name in ("7.corrupt", "7.corrupt.1", "7.corrupt.2"):
        (tmp_path / "7").mkdir()
        assert files.set_aside(tmp_path / "7", "corrupt").name == name
