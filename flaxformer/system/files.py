"""Durable writes, folder locks, digests of files, and safe removal of folders."""

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from flaxformer.system.errors import UserError
from flaxformer.system.links import check_file, check_folder, check_not_dangling, output_folder

ABANDONED = 86_400.0
"""Age in seconds from which on a temporary file has no writer any more."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")
"""Name of a temporary file of the file NAME, which a kill may leave; `file_names` lists none."""


def write_atomically(path: Path, data: bytes | memoryview, check: Callable[[Path], object] | None = None) -> None:
    """Replace a file: after a crash or power loss, it has either the old content or the new, never a part of it.

    Args:
      check: called with the new file before it gets its name; if it raises an exception, `path` is as it was.
    """
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(data)
        if check:
            check(temporary)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file to write, which replaces `path` at the end; after an exception, `path` is as it was.

    Its name is unpredictable, and it is created exclusively, so that no file or link of another's is written to.

    Raises:
      UserError: `path` is a symbolic link, or is below one in an output folder (`flaxformer.system.links`).
    """
    check_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)
    remove_abandoned(path)


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files of writers of a file that were killed, once they are older than a day."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - other.lstat().st_mtime > ABANDONED:
                other.unlink()


@contextlib.contextmanager
def lock_folder(folder: Path, doing: str, patience: float = 0.0, only_removes: bool = False) -> Iterator[None]:
    """Lock a folder for one writer; the operating system releases the lock if the process dies.

    A file system whose locks do not exclude other machines is detected where two writers meet: the first one finds the
    name of the second in `.lock.holder`.

    Args:
      doing: activity of the process, for the error message of another one.
      patience: seconds to wait for another process to release the lock.
      only_removes: nothing is written under the lock, so that a disk without room for `.lock.holder` is not an error.

    Raises:
      UserError: another process holds the lock, or the folder cannot be written; or, at the end, another process has
        locked the folder too.
    """
    try:
        make_folder(output_folder(folder))
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        check_file(folder / ".lock")
        raise UserError(f"{folder} cannot be locked: {error.strerror}; expected a writable folder") from None
    try:
        try:
            if not _lock(descriptor, patience):
                raise UserError(f"another process is {doing} in {folder}; wait for it, or give --output")
            holder, token = folder / ".lock.holder", secrets.token_hex(8).encode()
            is_noted = _replace_holder(holder, token, is_optional=only_removes)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be locked: {error.strerror}; expected room on the disk, and a file system with flock"
            ) from None
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                _release_holder(holder, token)
            raise
        if is_noted and folder.exists() and not _release_holder(holder, token):
            raise UserError(f"{folder} was locked by two processes; expected a file system with flock between machines")
    finally:
        os.close(descriptor)


def _replace_holder(path: Path, token: bytes, is_optional: bool) -> bool:
    """Write who holds a lock; this also makes a network file system list the folder again, as `refresh` does.

    Returns:
      False if the disk has no room for it and it is optional.
    """
    path.unlink(missing_ok=True)  # of a process that was killed
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if os.write(descriptor, token) < len(token):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        if not is_optional or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)
        return False
    return True


def _release_holder(path: Path, token: bytes) -> bool:
    """Remove who holds a lock; False if it is another process, whose entry stays."""
    try:
        is_held = path.read_bytes() == token
    except OSError:
        return False
    if is_held:
        path.unlink(missing_ok=True)
    return is_held


def refresh(folder: Path) -> None:
    """Change a folder, so that a network file system lists it again; otherwise a listing may be a minute old."""
    path = folder / ".refresh"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    path.unlink(missing_ok=True)


def _lock(descriptor: int, patience: float) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock for longer than `patience`."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)


def open_to_append(path: Path, patience: float = 60.0) -> int:
    """Open a file for appending, and lock it until it is closed, so that `unchanged` sees no half of it.

    Raises:
      OSError: it cannot be written, or another process holds the lock for longer than `patience`.
      UserError: it is a symbolic link, or is below one in an output folder.
    """
    check_file(path)
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if not _lock(file, patience):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another process removed the file before it was locked


@contextlib.contextmanager
def lock_if_unchanged(path: Path, size: int) -> Iterator[bool]:
    """Yield True if a file still has so many bytes and no process appends to it; within, none can."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _lock(file, 0.0) and os.fstat(file).st_size == size
    finally:
        os.close(file)


def safe_name(text: str, distinct: str) -> str:
    """Return a file name that begins with a text of at most 80 bytes and ends with a digest of `distinct`."""
    safe = "".join(c if c.isalnum() or c in "=,._-" else "_" for c in text)
    safe = safe.lstrip(".").encode()[:80].decode(errors="ignore")
    return f"{safe}-{hashlib.blake2b(distinct.encode(), digest_size=4).hexdigest()}"


def digest_of(data: bytes) -> str:
    """Return a BLAKE2b digest as 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def entries(folder: Path) -> list[Path]:
    """Paths in a folder, by name; none if it is not a folder, or if another process removes it meanwhile."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def flush(path: Path) -> None:
    """Write the content of a file, or the list of names of a folder, from the cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents; they are on the disk when this returns, whoever created them.

    Raises:
      UserError: it is a symbolic link below an output folder, or is below such a link; or a link to nothing.
    """
    check_folder(folder)
    check_not_dangling(folder)
    missing = [parent for parent in folder.parents if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for created in (folder, *missing):
        with contextlib.suppress(PermissionError):  # a folder above may be closed to readers
            flush(created.parent)


def flush_all(folder: Path) -> None:
    """Write everything in a folder, and the folder's own name, from the cache to the disk."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush(Path(path, name))
        flush(Path(path))
    flush(folder.parent)


def digest_files(folder: Path, names: Collection[str] | None = None) -> dict[str, str]:
    """Return a digest of every file in a folder, or of those of these names, by path relative to the folder."""
    algorithm = functools.partial(hashlib.blake2b, digest_size=16)
    digests = {}
    for name in file_names(folder):  # names of a foreign file may lead out of the folder
        if names is None or name in names:
            with (folder / name).open("rb") as file:
                digests[name] = hashlib.file_digest(file, algorithm).hexdigest()
    return digests


def file_names(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, relative to it, in order, without temporary ones."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not TEMPORARY.fullmatch(path.name))
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def remove(folder: Path, first: str, settle: float = 0.0) -> None:
    """Remove a folder, without following links.

    Args:
      first: name of the file that marks the folder as complete; it is removed first.
      settle: seconds during which threads that cannot be joined may still create files in the folder.

    Raises:
      OSError: the folder is a link, or a file in it cannot be removed.
    """
    check_folder(folder.parent)
    if folder.is_symlink():
        raise OSError(f"{folder} is a symbolic link and is not removed; expected a folder")
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
    """Rename a file or folder to NAME.WHY, or to the first of NAME.WHY.1, NAME.WHY.2, ... that does not exist."""
    check_folder(path.parent)
    names = itertools.chain([""], (f".{number}" for number in itertools.count(1)))
    target = next(other for name in names if not os.path.lexists(other := path.with_name(f"{path.name}.{why}{name}")))
    path.rename(target)
    flush(path.parent)
    return target


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system that holds the folder."""
    return shutil.disk_usage(folder).free
