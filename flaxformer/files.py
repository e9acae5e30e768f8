"""Files that are durable, and folders that are removed without leaving them."""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from flaxformer.struct import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader, a kill or a loss of power sees the old content or the new, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush(path.parent)


@contextlib.contextmanager
def locked(folder: Path, doing: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder for one writer; the lock ends with the process, however it ends.

    Args:
      patience: seconds to wait for another process that holds it.

    Raises:
      UserError: another process holds it, or the folder cannot be written.
    """
    end = time.monotonic() + patience
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise UserError(f"{folder} cannot be locked: {error.strerror}; expected a folder to write to") from None
    with os.fdopen(descriptor, "r+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise UserError(f"another process is {doing} in {folder}; wait for it, or give --output") from None
                time.sleep(0.02)
        yield


def digest_of(data: bytes) -> str:
    """Data in 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def flush(path: Path) -> None:
    """Have a file's content, or a folder's list of names, on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(folder: Path) -> None:
    """Have everything in a folder, and the folder's own name, on the disk when this returns."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush(Path(path, name))
        flush(Path(path))
    flush(folder.parent)


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file in a folder, by its path in it."""
    kind = functools.partial(hashlib.blake2b, digest_size=16)
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, kind).hexdigest()
    return found


def remove(folder: Path, first: str, settle: float = 0.0) -> None:
    """Remove a folder, first of all the file in it that marks it as complete; links are not followed.

    Args:
      settle: seconds in which threads that cannot be joined may still create files in it.

    Raises:
      OSError: the folder is a link, or something in it cannot be removed.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a symbolic link; it is left alone")
    if folder.exists():
        (folder / first).unlink(missing_ok=True)
        flush(folder)
        end = time.monotonic() + settle
        while time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(settle / 10)
        if folder.exists():
            shutil.rmtree(folder)
        flush(folder.parent)


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder to NAME.WHY, or the first of NAME.WHY.1, NAME.WHY.2, ... that is not there."""
    names = itertools.chain([""], (f".{number}" for number in itertools.count(1)))
    target = next(other for name in names if not os.path.lexists(other := path.with_name(f"{path.name}.{why}{name}")))
    path.rename(target)
    flush(path.parent)
    return target


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where the folder lies."""
    return shutil.disk_usage(folder).free
