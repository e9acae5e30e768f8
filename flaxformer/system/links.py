"""Output folders, below which nothing is read or written through a symbolic link.

A user may give a link as the output folder. A link below it leads out of the folder, to files of somebody else: it
comes from whoever else can write there, or from whoever made the folder. One rule holds for every command and for every
file or folder that the package reads or writes there: a link in its place is refused, with a message that names it.

Files are opened with O_NOFOLLOW, or are written beside their place under an unpredictable name, exclusively, and
renamed, so that a link that appears after the check is not followed either. One gap remains: between the check and
the write, another process that may write in the output folder can replace a *folder* in it by a link. Do not share an
output folder with a process that you do not trust.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from flaxformer.system.errors import UserError

_OUTPUTS: set[str] = set()
"""Absolute paths of the output folders of this process."""
DEEPEST = 100
"""Levels of folders that are checked where a caller gives none."""


def output_folder(folder: Path) -> Path:
    """Return a folder that a user named, which may itself be a link, and note it: nothing below it may be."""
    _OUTPUTS.add(os.path.abspath(folder))
    return folder


def check_folder(folder: Path) -> None:
    """Check that a folder, which need not exist, is not below a link in the output folder that it belongs to.

    Raises:
      UserError: it is a link, or a folder between it and the output folder is.
    """
    for path in _below_output(folder):
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link; expected a folder of its own")


def check_file(path: Path) -> None:
    """Check that a file, which need not exist, is not a link, and that its folder is not below one.

    Raises:
      UserError: it is.
    """
    check_folder(path.parent)
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; expected a file of its own")


def check_not_dangling(path: Path) -> None:
    """Check that neither a path that a command creates, nor a folder above it, is a link to a place without a file.

    Raises:
      UserError: the first one that is.
    """
    for location in (path, *path.parents):
        if location.is_symlink() and not location.exists():
            raise UserError(
                f"{location} is a symbolic link to {os.readlink(location)}, where nothing is; expected a folder"
            )


def check_contents(folder: Path, levels: int = DEEPEST) -> None:
    """Check that a folder, which need not exist, is not a link or below one, and that nothing in it is.

    Args:
      folder: the folder; one that cannot be listed is left to whoever reads it.
      levels: 0 to check the folder alone, 1 for what is in it too, and so on.

    Raises:
      UserError: the first link.
    """
    check_folder(folder)
    with contextlib.suppress(OSError), os.scandir(folder) as scan:
        for entry in sorted(scan, key=lambda entry: entry.name) if levels else ():
            path = folder / entry.name
            if entry.is_symlink():
                kind = "folder" if path.is_dir() else "file"
                raise UserError(f"{path} is a symbolic link; expected a {kind} of its own")
            if entry.is_dir(follow_symlinks=False):
                check_contents(path, levels - 1)


def check_places(root: Path, files: Iterable[str], folders: Mapping[str, int]) -> None:
    """Check the places of an output folder that a command reads or writes, before it does anything.

    Args:
      root: the output folder.
      files: names of files in it, which need not exist.
      folders: names of folders in it, each with the levels that `check_contents` checks.

    Raises:
      UserError: the first link.
    """
    for name in files:
        check_file(root / name)
    for name, levels in folders.items():
        check_contents(root / name, levels)


def _below_output(folder: Path) -> list[Path]:
    """The folder and its parents up to, and without, the outermost output folder, outermost first."""
    chain = [folder, *folder.parents]
    outputs = [number for number, path in enumerate(chain) if os.path.abspath(path) in _OUTPUTS]
    return chain[: max(outputs, default=0)][::-1]
