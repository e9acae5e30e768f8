"""Output folders, below which nothing is written through a symbolic link.

A user may give a link as the output folder. A link below it leads out of the folder, to files of somebody else: it
comes from whoever else can write there, or from whoever made the folder.
"""

import os
from pathlib import Path

from flaxformer.system.errors import UserError

_OUTPUTS: set[str] = set()
"""Absolute paths of the output folders of this process."""


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


def _below_output(folder: Path) -> list[Path]:
    """The folder and its parents up to, and without, the outermost output folder, outermost first."""
    chain = [folder, *folder.parents]
    outputs = [number for number, path in enumerate(chain) if os.path.abspath(path) in _OUTPUTS]
    return chain[: max(outputs, default=0)][::-1]
