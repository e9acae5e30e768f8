"""Files of an output folder that are stored elsewhere too, as they are at one instant.

At every instant, an output folder is one that a kill could have left, which every command can read (`store.store`,
`checkpoint`). A copy of one instant therefore is too. Some files are left out: hidden ones (locks, files that are being
written), leases, which are of processes of this machine, and the arrays of a step whose marker is not there yet.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flaxformer.store.places import DERIVED, FIGURES, TABLES, TRACKERS
from flaxformer.store.revisions import is_stored
from flaxformer.system.errors import UserError

ARRAYS = re.compile(r"(?P<step>(.*/)?\d+)/state[^/]*/.*")
"""Path of a file of a checkpoint's arrays, with the folder of its step."""
MARKER = "published.json"
ATTEMPTS, PAUSE = 200, 0.02
"""Number of times that a folder is read which changes while it is read, and seconds between them."""
RECENT = 2_000_000_000
"""Nanoseconds after its last change during which a file is read again although its stamp is the same."""


class Stamp(NamedTuple):
    """Size of a file, time of its last change in nanoseconds, and its number, which differ after it was changed."""

    bytes: int
    changed: int
    number: int


class LocalFile(NamedTuple):
    """Size, digest and time of a file, in seconds since 1970."""

    bytes: int
    digest: str
    time: float


class UnstableError(UserError):
    """The folder has changed too often while it was read."""


def is_array(path: str) -> bool:
    """True for the path of a file of a checkpoint's arrays."""
    return ARRAYS.fullmatch(path) is not None


def marker_of(path: str) -> str:
    """Return the path of the marker of the step that a file of arrays belongs to."""
    match = ARRAYS.fullmatch(path)
    return f"{match['step']}/{MARKER}" if match else ""


def is_derived(path: str) -> bool:
    """True for the path of a file that a report writes from the others."""
    return path in DERIVED or path.startswith((f"{FIGURES}/", f"{TABLES}/"))


def scan(folder: Path) -> dict[str, Stamp]:
    """Return the files that are stored, with their stamps.

    Raises:
      UserError: one is a symbolic link, or has a name that cannot be stored.
    """
    stamps = dict(_files(folder, ""))
    return {path: stamp for path, stamp in stamps.items() if not is_array(path) or marker_of(path) in stamps}


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, Stamp]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if entry.name.startswith(".") or prefix.endswith("leases/"):
                continue
            if entry.is_symlink():
                if path.partition("/")[0] in TRACKERS:  # of other programs, which may link
                    continue
                raise UserError(f"{entry.path} is a symbolic link; expected a file or folder of its own")
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, f"{path}/")
            elif not is_stored(path):
                raise UserError(f"{entry.path!r} has a name that cannot be stored; expected a printable one")
            else:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield path, Stamp(about.st_size, about.st_mtime_ns, about.st_ino)


def snapshot(
    folder: Path, stage: Path, known: Mapping[str, tuple[Stamp, LocalFile]]
) -> dict[str, tuple[Stamp, LocalFile]]:
    """Return the files of one instant; copies of those that are not known by their stamps are in `stage`.

    Args:
      folder: the output folder.
      stage: a folder for the copies, which is emptied first.
      known: files whose content is known, with their stamps.

    Raises:
      UnstableError: the folder changes all the time.
      UserError: a file is a symbolic link.
    """
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    files: dict[str, tuple[Stamp, LocalFile]] = {}
    for _ in range(ATTEMPTS):
        stamps = scan(folder)
        files = {path: files[path] for path, stamp in stamps.items() if path in files and files[path][0] == stamp}
        oldest = time.time_ns() - RECENT
        try:
            for path in stamps.keys() - files.keys():
                stamp, former = stamps[path], known.get(path)
                is_known = former is not None and former[0] == stamp and stamp.changed < oldest
                files[path] = former if former and is_known else (stamp, _copy(folder, stage, path))
        except FileNotFoundError:  # it was removed meanwhile
            continue
        if scan(folder) == stamps:
            return files
        time.sleep(PAUSE)
    raise UnstableError(f"{folder} changes faster than it can be read; expected a folder that is at rest for a moment")


def _copy(folder: Path, stage: Path, path: str) -> LocalFile:
    """Copy a file; one of arrays, which never changes, gets a second name where the file system has that."""
    source, target = folder / path, stage / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    about = source.stat()
    is_linked = False
    if is_array(path):
        with contextlib.suppress(OSError):
            os.link(source, target, follow_symlinks=False)
            is_linked = True
    if not is_linked:
        shutil.copyfile(source, target, follow_symlinks=False)
    return LocalFile(target.stat().st_size, digest_file(target), about.st_mtime)


def digest_file(file: Path) -> str:
    """Return the digest of a file's content, in 32 hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, functools.partial(hashlib.blake2b, digest_size=16)).hexdigest()


def remove_empty_folders(folder: Path, paths: Iterable[str]) -> None:
    """Remove the folders of files that were removed, where nothing is left in them."""
    for parent in {parent for path in paths for parent in Path(path).parents if parent != Path(".")}:
        for place in (parent, *parent.parents):
            if place != Path("."):
                with contextlib.suppress(OSError):
                    (folder / place).rmdir()
