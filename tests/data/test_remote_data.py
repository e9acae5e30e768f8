"""Data in object storage (fsspec's store in memory): the same as files of this machine, downloaded once per version."""

from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer.checkpoint import Checkpoints, Stop
from flaxformer.components import Attention
from flaxformer.config import ModelConfig
from flaxformer.data import prepare
from flaxformer.data.token_files import open_tokens
from flaxformer.jobs import Job, check, train
from flaxformer.runner.events import Started
from flaxformer.study import initial_weights
from flaxformer.system import objects, remote_data
from flaxformer.system.errors import UserError
from flaxformer.system.remote_data import local_path
from flaxformer.tasks import Copy, TextFiles, TokenFiles
from flaxformer.training import From, Run, Training

fsspec = pytest.importorskip("fsspec")
TEXT = b"To be, or not to be, that is the question. " * 40
URL = "memory://bucket/data"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """An empty store, and no copies."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    monkeypatch.setenv(remote_data.VARIABLE, str(tmp_path / "cache"))
    forget()
    return system


def forget():
    """Be another process, which has read nothing yet."""
    remote_data.download_data.cache_clear()
    open_tokens.cache_clear()
    initial_weights.local_source.cache_clear()


def test_text_of_a_bucket_is_the_same_data_as_a_file(store, tmp_path):
    store.pipe_file("bucket/data/book.txt", TEXT)
    (tmp_path / "book.txt").write_bytes(TEXT)
    tasks = [TextFiles(path=path, length=8, batch_size=2) for path in (f"{URL}/book.txt", str(tmp_path / "book.txt"))]
    assert tasks[0].fingerprint() == tasks[1].fingerprint()
    batches = [task.load().batch(jax.random.key(0), 3) for task in tasks]
    np.testing.assert_array_equal(batches[0].inputs, batches[1].inputs)


def test_a_folder_is_downloaded_with_its_names(store):
    store.pipe_file("bucket/data/a/x.txt", b"x")
    store.pipe_file("bucket/data/y.txt", b"y")
    folder = local_path(URL)
    assert folder.name == "data"
    assert {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.txt")} == {
        "a/x.txt": b"x",
        "y.txt": b"y",
    }


def test_a_version_is_downloaded_once_and_a_process_keeps_the_first(store, monkeypatch):
    store.pipe_file("bucket/data/x.txt", b"one")
    downloads, download = [], objects.download
    monkeypatch.setattr(objects, "download", lambda url, file: (downloads.append(url), download(url, file)))
    first = local_path(f"{URL}/x.txt")
    forget()
    assert local_path(f"{URL}/x.txt") == first
    assert len(downloads) == 1
    store.pipe_file("bucket/data/x.txt", b"two!")
    assert local_path(f"{URL}/x.txt").read_bytes() == b"one"
    forget()
    assert local_path(f"{URL}/x.txt").read_bytes() == b"two!"
    assert len(downloads) == 2


def test_data_that_change_while_they_are_read_are_refused(store, monkeypatch, tmp_path):
    store.pipe_file("bucket/data/x.txt", b"one")
    download = objects.download

    def changing(url, file):
        download(url, file)
        store.pipe_file("bucket/data/x.txt", b"two")

    monkeypatch.setattr(objects, "download", changing)
    with pytest.raises(UserError, match="which changed while it was downloaded"):
        local_path(f"{URL}/x.txt")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_nothing_at_a_url_is_one_message():
    with pytest.raises(UserError, match=f"source_path is '{URL}/none', where no object is"):
        local_path(f"{URL}/none", "source_path")
    assert local_path("~/x") == Path.home() / "x"


def test_prepared_tokens_of_a_bucket_are_those_of_a_folder(store, tmp_path):
    (tmp_path / "book.txt").write_bytes(TEXT)
    there = prepare(tmp_path / "book.txt", f"{URL}/tokens")
    here = prepare(tmp_path / "book.txt", tmp_path / "tokens")
    assert there == here
    assert objects.find(f"{URL}/tokens").keys() == {file.name for file in (tmp_path / "tokens").iterdir()}
    tasks = [TokenFiles(path=path, length=8, batch_size=2) for path in (f"{URL}/tokens", str(tmp_path / "tokens"))]
    assert tasks[0].fingerprint() == tasks[1].fingerprint()
    before = objects.find(f"{URL}/tokens")
    assert prepare(tmp_path / "book.txt", f"{URL}/tokens") == there
    assert objects.find(f"{URL}/tokens") == before
    (tmp_path / "book.txt").write_bytes(TEXT + b"more")
    with pytest.raises(UserError, match="which holds other data"):
        prepare(tmp_path / "book.txt", f"{URL}/tokens")


def test_an_interrupted_preparation_is_finished_by_the_next(store, tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_bytes(TEXT)
    uploads, upload = [], objects.upload

    def interrupted(file, url):
        uploads.append(url)
        if len(uploads) == 2:
            raise KeyboardInterrupt
        upload(file, url)

    monkeypatch.setattr(objects, "upload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "book.txt", f"{URL}/tokens")
    with pytest.raises(UserError):
        open_tokens(f"{URL}/tokens")
    monkeypatch.setattr(objects, "upload", upload)
    forget()
    prepare(tmp_path / "book.txt", f"{URL}/tokens")
    assert open_tokens(f"{URL}/tokens").train.size > 0


def test_text_of_a_bucket_is_prepared_under_its_name(store, tmp_path):
    store.pipe_file("bucket/data/book.txt", TEXT)
    (tmp_path / "book.txt").write_bytes(TEXT)
    there = prepare(f"{URL}/book.txt", tmp_path / "there")
    assert there == prepare(tmp_path / "book.txt", tmp_path / "here")


def test_weights_to_start_from_can_be_a_file_in_a_bucket(store, tmp_path):
    table = np.arange(256 * 8, dtype=np.float32).reshape(256, 8)
    np.savez(tmp_path / "weights.npz", **{"embedding/tokens": table})
    store.put_file(str(tmp_path / "weights.npz"), "bucket/data/weights.npz")
    config = ModelConfig(layers=1, d_model=8, attention=Attention(heads=2))
    run = Run(model=config, task=Copy(), init=From(path=f"{URL}/weights.npz"))
    there, here = run, run.replace(init=From(path=str(tmp_path / "weights.npz")))
    assert initial_weights.digest(there) == initial_weights.digest(here)
    arrays = initial_weights.read(there), initial_weights.read(here)
    for one, other in zip(*map(jax.tree.leaves, arrays), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(arrays[0].is_loaded))


def test_a_job_whose_weights_in_a_bucket_were_replaced_is_not_resumed(store, tmp_path):
    np.savez(tmp_path / "weights.npz", **{"embedding/tokens": np.ones((256, 8), np.float32)})
    store.put_file(str(tmp_path / "weights.npz"), "bucket/data/weights.npz")
    run = Run(
        model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2)),
        task=Copy(),
        training=Training(steps=2),
        init=From(path=f"{URL}/weights.npz"),
    )
    job, stop = Job(output=tmp_path / "job"), Stop()
    for event in train(run, job, stop):
        stop.by = 15 if isinstance(event, Started) else stop.by
    assert Checkpoints(job.output).steps()
    forget()
    store.rm("bucket/data/weights.npz")
    assert check(run, job) is None
    np.savez(tmp_path / "weights.npz", **{"embedding/tokens": np.zeros((256, 8), np.float32)})
    store.put_file(str(tmp_path / "weights.npz"), "bucket/data/weights.npz")
    forget()
    with pytest.raises(UserError, match="started from other weights"):
        check(run, job)
