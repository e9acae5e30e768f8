"""Object storage: whole objects by URL, through fsspec, which is imported where a path has a protocol.

Four properties of a store are used. An object appears whole or not at all. A listing has every object that was written
before it, and a reading gives the newest content. `create` succeeds for one of several writers: a conditional write,
`If-None-Match: *` or `ifGenerationMatch=0`. Amazon S3 and Google Cloud Storage have all four;
`check_conditional_writes` finds a store that ignores the condition.
"""

import contextlib
import functools
import importlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flaxformer.system.errors import UserError, shorten
from flaxformer.system.extras import library

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}([^/].*)", re.DOTALL)
"""A URL; `pathlib` removes one of its two slashes."""
LIBRARIES = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
LIBRARIES |= {"hf": ("huggingface_hub", "weights")}
"""Library of a protocol, and the extra of this package that installs it; fsspec knows other protocols."""
TRIES, PAUSE = 3, 0.5
"""Calls until a failure of the network is reported, and seconds before the second; the pause doubles each time."""
FINAL = (PermissionError, NotImplementedError, ImportError, TypeError, ValueError)
"""Failures that calling again does not mend."""
VERSIONS = ("ETag", "etag", "generation", "md5Hash", "blob_id", "mtime", "LastModified", "created")
"""Fields of fsspec's entries that change with the content of an object, the best first."""


class StoredObject(NamedTuple):
    """Size of an object in bytes, and a text that changes with its content."""

    bytes: int
    version: str


def url_of(path: str | os.PathLike[str]) -> str | None:
    """Return the URL of a path with a protocol, such as s3://bucket/folder; None for a path of this machine.

    Raises:
      UserError: a part of it cannot be the name of a file.
    """
    match = URL.fullmatch(os.fspath(path))
    if match is None:
        return None
    names = [name for name in match[2].split("/") if name]
    if not all(map(is_name, names)):
        wrong = next(name for name in names if not is_name(name))
        raise UserError(f"the path {os.fspath(path)!r} has the part {wrong!r}; expected PROTOCOL://BUCKET/NAME")
    return f"{match[1]}://{'/'.join(names)}"


def is_name(text: str) -> bool:
    """True if a text can be the name of a file: printable, at most 255 bytes, no separator, and not "." or ".."."""
    return text not in ("", ".", "..") and text.isprintable() and not {*"/\\"} & {*text} and len(text.encode()) <= 255


def find(url: str) -> dict[str, StoredObject]:
    """Return the objects below a URL, by their names below it.

    Raises:
      UserError: there is no such bucket, it cannot be read, or the name of an object is no path of a file.
    """
    system, path = _place(url)

    def entries() -> dict[str, dict[str, object]]:
        system.invalidate_cache()
        return dict(system.find(f"{path}/", detail=True))

    with _bucket(url):
        listed = _call(url, "listed", entries)
    named = {name.lstrip("/")[len(path) + 1 :]: _stored(entry) for name, entry in listed.items()}
    named = {name: entry for name, entry in named.items() if name and not name.endswith("/")}
    for name in named:
        if not all(map(is_name, name.split("/"))):
            raise UserError(f"{url} holds the object {name!r}, which is no path of a file; expected names of files")
    return named


def info(url: str) -> StoredObject | None:
    """Return the size and version of an object; None if there is none, such as for the URL of a folder.

    Raises:
      UserError: it cannot be read.
    """
    system, path = _place(url)

    def entry() -> dict[str, object]:
        system.invalidate_cache()
        return dict(system.info(path))

    try:
        about = _call(url, "read", entry)
    except FileNotFoundError:
        return None
    return _stored(about) if about["type"] == "file" else None


def read(url: str) -> bytes:
    """Return the content of an object.

    Raises:
      FileNotFoundError: there is none.
      UserError: it cannot be read.
    """
    system, path = _place(url)
    return bytes(_call(url, "read", lambda: system.cat_file(path)))


def download(url: str, file: Path) -> None:
    """Write the content of an object into a file.

    Raises:
      FileNotFoundError: there is no such object.
      UserError: it cannot be read.
    """
    system, path = _place(url)
    _call(url, "read", lambda: system.get_file(path, str(file)))


def upload(file: Path, url: str) -> None:
    """Write the content of a file into an object, which appears whole.

    Raises:
      UserError: it cannot be written.
    """
    system, path = _place(url)
    with _bucket(url):
        _call(url, "written", lambda: system.put_file(str(file), path))


def create(url: str, data: bytes) -> bool:
    """Write an object if there is none of its name; False if there is another.

    Args:
      data: content that no other writer writes, so that a write whose reply was lost is recognised.

    Raises:
      UserError: it cannot be written, or the store has no conditional writes.
    """
    system, path = _place(url)

    def write() -> bool:
        try:
            system.pipe_file(path, data, mode="create")
        except (FileNotFoundError, *FINAL):
            raise
        except Exception:
            with contextlib.suppress(FileNotFoundError):
                return bytes(system.cat_file(path)) == data
            raise
        return True

    with _bucket(url):
        return _call(url, "written", write)


def delete(urls: Sequence[str]) -> None:
    """Remove objects; those that are not there are no error.

    Raises:
      UserError: one cannot be removed.
    """
    if not urls:
        return
    system, paths = _place(urls[0])[0], [_place(url)[1] for url in urls]
    try:
        _call(urls[0], "removed", lambda: system.rm(paths))
    except FileNotFoundError:
        for url, path in zip(urls, paths, strict=True):
            with contextlib.suppress(FileNotFoundError):
                _call(url, "removed", functools.partial(system.rm_file, path))


def check_conditional_writes(url: str) -> None:
    """Check that a store refuses to create an object a second time.

    Raises:
      UserError: it does not.
    """
    probe = f"{url}/probes/{secrets.token_hex(8)}"
    try:
        is_refused = create(probe, b"1") and not create(probe, b"2")
    finally:
        delete([probe])
    if not is_refused:
        raise UserError(
            f"{url} is in a store without conditional writes (If-None-Match), so that two writers would not see each "
            "other; expected Amazon S3, Google Cloud Storage, or another store with them"
        )


@functools.cache
def file_system(protocol: str) -> "AbstractFileSystem":
    """Return fsspec's file system of a protocol, which keeps no listings.

    Raises:
      UserError: its library is not installed, or there is no such protocol.
    """
    name, extra = LIBRARIES.get(protocol, ("fsspec", "s3"))
    purpose = f"a path that begins with {protocol}://"
    library(name, extra, purpose)
    fsspec = importlib.import_module("fsspec")
    try:
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise UserError(f"{purpose} cannot be opened: {error}; expected s3://, gs:// or hf://") from None
    except Exception as error:  # of the library, which may look for credentials
        raise UserError(f"{purpose} cannot be opened: {_reason(error)}") from None


def _place(url: str) -> tuple["AbstractFileSystem", str]:
    """The file system of a URL, and its path there."""
    protocol, _, path = url.partition("://")
    return file_system(protocol), path


def _stored(entry: dict[str, object]) -> StoredObject:
    size = entry.get("size")
    version = next((str(entry[name]) for name in VERSIONS if entry.get(name)), "")
    return StoredObject(size if isinstance(size, int) else 0, f"{size} {version}")


def _call(url: str, done: str, function: Callable[[], T]) -> T:
    """Call a function of a store, again after a failure that may pass.

    Raises:
      FileNotFoundError: there is no such object, or no such bucket.
      UserError: any other failure.
    """
    for number in range(1, TRIES + 1):
        try:
            return function()
        except FileNotFoundError:
            raise
        except Exception as error:
            if number == TRIES or isinstance(error, FINAL) or _is_about_credentials(error):
                raise UserError(f"{url} cannot be {done}: {_reason(error)}") from error
        time.sleep(PAUSE * 2 ** (number - 1))
    raise AssertionError


@contextlib.contextmanager
def _bucket(url: str) -> Iterator[None]:
    """Within, FileNotFoundError means that there is no such bucket."""
    try:
        yield
    except FileNotFoundError as error:
        bucket = "/".join(url.split("/")[:3])
        raise UserError(f"there is no bucket {bucket} ({_reason(error)}); expected one that exists") from None


def _is_about_credentials(error: Exception) -> bool:
    return "credential" in type(error).__name__.lower()


def _reason(error: Exception) -> str:
    """The cause of a failure in words, and what to do about it."""
    text = shorten(" ".join(str(error).split())) or type(error).__name__
    if _is_about_credentials(error):
        return f"{text}; expected credentials, such as AWS_ACCESS_KEY_ID or GOOGLE_APPLICATION_CREDENTIALS"
    if isinstance(error, PermissionError):
        return f"{text}; expected credentials that allow it"
    if isinstance(error, (FileNotFoundError, *FINAL)):
        return text
    return f"{text}; check the network, and run the same command again"
