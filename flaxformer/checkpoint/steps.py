"""The folder of one step: its marker, and its arrays, which are verified when written and when read."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flaxformer.checkpoint import storage
from flaxformer.checkpoint.errors import DamagedStepError, first_line
from flaxformer.checkpoint.leaves import Leaf, digest
from flaxformer.checkpoint.marker import NAME as MARKER
from flaxformer.checkpoint.marker import Marker
from flaxformer.system import files
from flaxformer.system.errors import UserError
from flaxformer.system.links import check_contents, check_file, check_folder

STATE = "state"


def step_numbers(folder: Path, published: bool) -> list[int]:
    """Return the steps in a folder with, or without, a marker, in order.

    Raises:
      UserError: a step, or its marker, is a symbolic link.
    """
    paths = files.entries(folder)
    step_folders = [
        path for path in paths if path.name.isdecimal() and path.name.isascii() and str(int(path.name)) == path.name
    ]
    for path in step_folders:
        check_file(path / MARKER)
    step_folders = [path for path in step_folders if path.is_dir()]
    return sorted(int(path.name) for path in step_folders if (path / MARKER).exists() == published)


def write_step(folder: Path, marker: Marker, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays of a new step, flush them, read them back and compare; only then write the marker."""
    target = folder / str(marker.step)
    check_folder(target)
    target.mkdir()
    try:
        storage.write(target / STATE, {name: array for name, array in arrays.items() if array.size})
        files.flush_all(target)
        marker = dataclasses.replace(marker, files=files.digest_files(target / STATE))
        read_arrays(folder, marker, marker.leaves)
        files.write_atomically(target / MARKER, marker.encode())
    except BaseException:
        with contextlib.suppress(OSError):  # the original error is raised; the next save removes remaining files
            files.remove(target, MARKER, settle=0.5)
        raise


def read_marker(folder: Path, step: int) -> Marker:
    """Read the marker of a published step.

    Raises:
      DamagedStepError: it cannot be read, or was changed.
      UserError: it is a symbolic link.
    """
    check_file(folder / str(step) / MARKER)
    try:
        return Marker.decode((folder / str(step) / MARKER).read_bytes(), step)
    except OSError as error:
        raise DamagedStepError(f"{MARKER} cannot be read ({error})") from None


def leaf_digests(folder: Path, step: int) -> dict[str, str]:
    """Return the digests of a published step's leaves.

    Raises:
      UserError: its marker is damaged, or that of another step.
    """
    try:
        return read_marker(folder, step).digests
    except DamagedStepError as error:
        raise UserError(f"step {step} of {folder} is damaged: {error}; remove the step to go on without it") from None


def read_arrays(folder: Path, marker: Marker, leaves: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """Read arrays of a published step, and compare them with the digests of its marker.

    Raises:
      DamagedStepError: a file or an array is missing or differs.
      UserError: a file is a symbolic link.
    """
    check_contents(folder / str(marker.step))
    state, empty = folder / str(marker.step) / STATE, [name for name, leaf in leaves.items() if 0 in leaf.shape]
    try:
        contents = files.digest_files(state)
        for name, expected in marker.files.items():
            if contents.get(name) != expected:
                raise DamagedStepError(f"{STATE}/{name} {'has changed' if name in contents else 'is missing'}")
        arrays = storage.read(state, [name for name in leaves if name not in empty])
    except (MemoryError, DamagedStepError):
        raise
    except Exception as error:
        raise DamagedStepError(f"it cannot be read ({first_line(error)})") from error
    arrays |= {name: np.zeros(leaves[name].shape, leaves[name].dtype) for name in empty}
    for name, leaf in leaves.items():
        array = arrays[name]
        if (array.shape, str(array.dtype)) != (leaf.shape, leaf.storage_dtype):
            wanted = f"{leaf.storage_dtype}{list(leaf.shape)}"
            raise DamagedStepError(f"{name} is {array.dtype}{list(array.shape)}; expected {wanted}")
        if digest(array) != marker.digests[name]:
            raise DamagedStepError(f"{name} does not match its digest")
    return arrays
