"""A temporary file of a writer that was killed is in no list, changes no digest, and is removed after a day."""

import os
import secrets
import sys
import time

import pytest

from flaxformer.system import files
from flaxformer.system.user_code import copy_sources, is_unchanged_copy


def leave(path):
    """Leave what a kill between making and renaming a file leaves; return its path."""
    name, token = path.name, secrets.token_hex
    left = path.with_name(f".{name}.{token(8)}.tmp")
    left.write_bytes(path.read_bytes()[:7])
    return left


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "some_user_module.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("some_user_module")
    del sys.modules["some_user_module"]


def test_a_kill_leaves_a_file_of_this_name(tmp_path, monkeypatch):
    def end(path):
        raise SystemExit

    monkeypatch.setattr(files, "flush", end)
    monkeypatch.setattr(files.Path, "unlink", lambda self, missing_ok=False: None)
    with pytest.raises(SystemExit):
        files.write_atomically(tmp_path / "a.b", b"1")
    [left] = tmp_path.iterdir()
    assert files.TEMPORARY.fullmatch(left.name)["name"] == "a.b"
    assert files.file_names(tmp_path) == []
    assert files.digest_files(tmp_path) == {}


def test_a_copy_of_code_is_unchanged_beside_a_temporary_file_which_the_next_copy_removes(module, tmp_path):
    folder = tmp_path / "code"
    copy = folder / copy_sources(folder, [module]) / "some_user_module.py"
    recent, old = leave(copy), leave(copy)
    os.utime(old, (time.time() - files.ABANDONED - 60,) * 2)
    assert is_unchanged_copy(copy.parent)
    copy_sources(folder, [module])
    assert (recent.exists(), old.exists()) == (True, False)
    (copy.parent / ".hidden.py").write_text("X = 2")
    assert not is_unchanged_copy(copy.parent)
