"""Names by which services of tracking find the run of an output folder again."""

import uuid
from pathlib import Path

from flaxformer.system.files import make_folder, write_atomically

PROJECT = "flaxformer"
"""Project of all runs, where the user names no other."""


def folder_id(folder: Path) -> str:
    """Return the text in the file `id` of a folder; a file that is not there is made with 12 random digits."""
    make_folder(folder)
    if not (folder / "id").exists():
        write_atomically(folder / "id", uuid.uuid4().hex[:12].encode())
    return (folder / "id").read_text()
