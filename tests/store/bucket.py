"""Object store in memory, in place of `flaxformer.system.objects`: its calls are counted, fail, and end a process."""

import contextlib
import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace

from flaxformer.store import local_copy, local_files, mirror, revisions
from flaxformer.store.local_copy import LocalCopy
from flaxformer.store.mirror import Mirror
from flaxformer.system import objects
from flaxformer.system.errors import UserError
from flaxformer.system.objects import StoredObject

URL = "s3://bucket/runs/study"
TAKE = revisions.take


class Killed(BaseException):
    """The process ended here."""


class Bucket:
    """Objects by URL, with conditional writes.

    Args:
      is_conditional: False for a store that writes over an object that `create` should leave alone.
    """

    def __init__(self, is_conditional=True):
        self.objects, self.is_conditional = {}, is_conditional
        self.calls = itertools.count(1)
        self.number = 0
        self.at, self.how = 0, "before"
        """Number of the call that goes wrong, and how: it fails "before" or "after" its effect, or the process is
        killed there, "killed before" or "killed after"."""
        self.on_call = lambda name, url: None
        self.lock = threading.RLock()

    @contextlib.contextmanager
    def wrong(self, at, how):
        """Within, the call with this number goes wrong."""
        self.number, self.at, self.how = 0, at, how
        try:
            yield
        finally:
            self.at = 0

    @contextlib.contextmanager
    def sound(self):
        """Within, calls are not counted, and none goes wrong."""
        at, number, self.at = self.at, self.number, 0
        try:
            yield
        finally:
            self.at, self.number = at, number

    @contextlib.contextmanager
    def _call(self, name, url):
        self.on_call(name, url)
        with self.lock:
            self.number += 1
            is_wrong = self.number == self.at or (self.at and self.number > self.at and "killed" in self.how)
            error = (Killed if "killed" in self.how else UserError)(f"call {self.number} of {name} {url}")
            if is_wrong and ("before" in self.how or self.number > self.at):
                raise error
            yield
            if is_wrong:
                raise error

    def find(self, url):
        with self._call("find", url):
            found = {name: data for name, data in self.objects.items() if name.startswith(f"{url}/")}
            return {name[len(url) + 1 :]: StoredObject(len(data), str(hash(data))) for name, data in found.items()}

    def info(self, url):
        with self._call("info", url):
            return StoredObject(len(self.objects[url]), str(hash(self.objects[url]))) if url in self.objects else None

    def read(self, url):
        with self._call("read", url):
            if url not in self.objects:
                raise FileNotFoundError(url)
            return self.objects[url]

    def download(self, url, file):
        with self._call("download", url):
            if url not in self.objects:
                raise FileNotFoundError(url)
            file.write_bytes(self.objects[url])

    def upload(self, file, url):
        with self._call("upload", url):
            self.objects[url] = file.read_bytes()

    def create(self, url, data):
        with self._call("create", url):
            if url in self.objects and self.is_conditional:
                return self.objects[url] == data
            self.objects[url] = data
            return True

    def delete(self, urls):
        for url in urls:
            with self._call("delete", url):
                self.objects.pop(url, None)

    def install(self, monkeypatch):
        """Use it in place of fsspec, and a clock that moves where a process sleeps."""
        for name in ("find", "info", "read", "download", "upload", "create", "delete"):
            monkeypatch.setattr(objects, name, getattr(self, name))
        monkeypatch.setattr(local_copy, "THREADS", 1)
        monkeypatch.setattr(local_files, "RECENT", 0)  # sizes differ in these tests
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is lost here
        self.now, self.while_asleep = 0.0, lambda: None
        monkeypatch.setattr(mirror, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(
            revisions, "take", lambda url, is_patient=True: TAKE(url, is_patient, self.sleep, lambda: self.now)
        )
        return self

    def sleep(self, seconds):
        self.now += seconds
        self.while_asleep()


def write(root, files):
    """Write texts into a folder, by path; None removes a file."""
    for path, text in files.items():
        file = Path(root, path)
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def texts(root):
    """Return the texts of all files below a folder, without hidden ones, by path."""
    files = [file for file in sorted(Path(root).rglob("*")) if file.is_file() and not file.name.startswith(".")]
    return {file.relative_to(root).as_posix(): file.read_text() for file in files}


def writer(place, **options):
    """Return a process that writes the remote folder from the copy in a place."""
    process = Mirror(URL, place, **options)
    process.attach()
    return process


def read(place, **options):
    """Return the texts of the newest revision, fetched into a place."""
    copy = LocalCopy(URL, place, **options)
    copy.fetch()
    return texts(copy.folder)
