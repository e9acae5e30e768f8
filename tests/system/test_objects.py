"""Object storage through fsspec, with its store in memory: URLs, objects, conditional writes, failures."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from flaxformer.system import objects
from flaxformer.system.errors import UserError

fsspec = pytest.importorskip("fsspec")
URL = "memory://bucket/folder"


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    """An empty store, and no pauses."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    monkeypatch.setattr(objects, "PAUSE", 0.0)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        (Path("s3://bucket/a/b"), "s3://bucket/a/b"),
        ("gs://bucket//a/", "gs://bucket/a"),
        ("runs/study", None),
        ("/runs/s3", None),
        ("c:/windows", None),
        ("file:///x", None),
        ("hf:owner/name", None),
        ("a b://x", None),
    ],
)
def test_urls_and_paths_are_distinguished(path, url):
    assert objects.url_of(path) == url


@pytest.mark.parametrize(
    "path", ["s3://bucket/../x", "s3://bucket/a\nb", "s3://./x", "s3://bucket/a\\b", "s3://b/" + "x" * 256]
)
def test_urls_with_names_that_no_file_has_are_refused(path):
    with pytest.raises(UserError, match="expected PROTOCOL://BUCKET/NAME"):
        objects.url_of(path)


def test_fsspec_is_imported_for_urls_alone(tmp_path):
    code = (
        "import sys, flaxformer.cli.remote_folders, flaxformer.store.remote as remote\n"
        "from flaxformer.system.remote_data import local_path\n"
        "with remote.writing(sys.argv[1]), remote.reading(sys.argv[1]):\n"
        "    local_path(sys.argv[1])\n"
        "sys.exit('fsspec' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_objects_are_written_listed_read_and_removed(tmp_path):
    (tmp_path / "file").write_bytes(b"one")
    objects.upload(tmp_path / "file", f"{URL}/a/x")
    objects.upload(tmp_path / "file", f"{URL}/y")
    objects.upload(tmp_path / "file", f"{URL}er/z")
    assert {name: entry.bytes for name, entry in objects.find(URL).items()} == {"a/x": 3, "y": 3}
    assert objects.read(f"{URL}/a/x") == b"one"
    objects.download(f"{URL}/a/x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"one"
    before = objects.info(f"{URL}/a/x")
    (tmp_path / "file").write_bytes(b"two")
    objects.upload(tmp_path / "file", f"{URL}/a/x")
    assert objects.info(f"{URL}/a/x").version != before.version
    assert objects.info(f"{URL}/a") is None
    assert objects.info(f"{URL}/none") is None
    objects.delete([f"{URL}/a/x", f"{URL}/none", f"{URL}/y"])
    assert objects.find(URL) == {}
    with pytest.raises(FileNotFoundError):
        objects.read(f"{URL}/a/x")


def test_of_several_writers_one_creates_an_object():
    assert [objects.create(f"{URL}/x", data) for data in (b"one", b"two")] == [True, False]
    assert objects.read(f"{URL}/x") == b"one"
    objects.check_conditional_writes(URL)
    assert objects.find(URL).keys() == {"x"}


def test_a_store_without_conditional_writes_is_noticed(monkeypatch):
    system = objects.file_system("memory")
    write = type(system).pipe_file
    monkeypatch.setattr(system, "pipe_file", lambda path, value, mode="overwrite": write(system, path, value))
    with pytest.raises(UserError, match="without conditional writes"):
        objects.check_conditional_writes(URL)
    assert objects.find(URL) == {}


def failing(monkeypatch, name, errors, has_effect=False):
    """Let the next calls of a function of the store fail, one for each error; return the number of calls."""
    system, calls = objects.file_system("memory"), []
    function = getattr(type(system), name)

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) > len(errors):
            return function(system, *arguments, **options)
        if has_effect:
            function(system, *arguments, **options)
        raise errors[len(calls) - 1]

    monkeypatch.setattr(system, name, call)
    return calls


def test_a_failure_that_passes_is_no_error(monkeypatch):
    calls = failing(monkeypatch, "pipe_file", [OSError("reset"), TimeoutError("late")])
    assert objects.create(f"{URL}/x", b"one")
    assert len(calls) == 3
    assert objects.read(f"{URL}/x") == b"one"


def test_a_write_whose_reply_was_lost_is_recognised(monkeypatch):
    failing(monkeypatch, "pipe_file", [OSError("reset")], has_effect=True)
    assert objects.create(f"{URL}/x", b"one")
    failing(monkeypatch, "pipe_file", [OSError("reset")])
    assert not objects.create(f"{URL}/x", b"two")


@pytest.mark.parametrize(
    ("error", "words", "tries"),
    [
        (OSError("unreachable"), "cannot be read: unreachable; check the network, and run the same command again", 3),
        (PermissionError("denied"), "cannot be read: denied; expected credentials that allow it", 1),
        (
            type("NoCredentialsError", (Exception,), {})("none"),
            "cannot be read: none; expected credentials, such as",
            1,
        ),
        (ValueError("bad"), "cannot be read: bad", 1),
    ],
)
def test_a_failure_is_one_message(monkeypatch, error, words, tries):
    calls = failing(monkeypatch, "cat_file", [error] * 9)
    with pytest.raises(UserError, match=f"^{URL}/x {words}"):
        objects.read(f"{URL}/x")
    assert len(calls) == tries


def test_a_bucket_that_does_not_exist_is_one_message(monkeypatch):
    failing(monkeypatch, "find", [FileNotFoundError("no such bucket")])
    with pytest.raises(UserError, match="there is no bucket memory://bucket"):
        objects.find(URL)


@pytest.mark.parametrize(("protocol", "library", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_missing_library_names_its_extra(monkeypatch, protocol, library, extra):
    imported = importlib.import_module

    def absent(name, *arguments):
        if name == library:
            raise ImportError(f"No module named '{name}'")
        return imported(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", absent)
    objects.file_system.cache_clear()
    with pytest.raises(UserError, match=rf"{protocol}:// needs {library} .*pip install 'flaxformer\[{extra}\]'"):
        objects.find(f"{protocol}://bucket/x")


def test_an_unknown_protocol_is_one_message():
    with pytest.raises(UserError, match=r"begins with nope:// cannot be opened: .*; expected s3://, gs:// or hf://"):
        objects.find("nope://bucket/x")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a\x1bb"])
def test_names_that_lead_elsewhere_are_refused(monkeypatch, name):
    system = objects.file_system("memory")
    listed = {f"/bucket/folder/{name}": {"type": "file", "size": 1}}
    monkeypatch.setattr(system, "find", lambda path, detail: listed)
    with pytest.raises(UserError, match="which is no path of a file"):
        objects.find(URL)
