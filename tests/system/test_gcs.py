"""Google Cloud Storage by gcsfs, on an imitation of its API."""

import pytest
from system import gcs_server

from flaxformer.system import objects
from flaxformer.system.errors import UserError

pytest.importorskip("gcsfs")
URL = "gs://bucket/runs/study"


@pytest.fixture
def address(monkeypatch):
    with gcs_server.server() as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setattr(objects, "TRIES", 1)
        objects.file_system.cache_clear()
        yield address
        objects.file_system.cache_clear()


def test_objects_of_google_cloud_storage(address, tmp_path):
    assert [objects.create(f"{URL}/revisions/1", data) for data in (b"one", b"two", b"one")] == [True, False, True]
    assert objects.read(f"{URL}/revisions/1") == b"one"
    with pytest.raises(FileNotFoundError):
        objects.read(f"{URL}/revisions/2")
    (tmp_path / "file").write_bytes(b"hello")
    objects.upload(tmp_path / "file", f"{URL}/objects/a/b")
    objects.download(f"{URL}/objects/a/b", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"hello"
    assert objects.info(f"{URL}/objects/a/b").bytes == 5
    assert {name: entry.bytes for name, entry in objects.find(URL).items()} == {"objects/a/b": 5, "revisions/1": 3}
    assert objects.find(f"{URL}/none") == {}
    objects.delete([f"{URL}/objects/a/b", f"{URL}/none"])
    objects.check_conditional_writes(URL)
    assert objects.find(URL).keys() == {"revisions/1"}
    with pytest.raises(UserError, match="there is no bucket gs://none"):
        objects.find("gs://none/x")
