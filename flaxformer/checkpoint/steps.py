"""The folder of one step: its marker, and its arrays, which are verified when written and when read."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from jax.sharding import Sharding

from flaxformer.checkpoint import storage
from flaxformer.checkpoint.errors import DamagedStepError, first_line
from flaxformer.checkpoint.host_arrays import HostArray, has_same_bits, sharding_of
from flaxformer.checkpoint.leaves import Leaf, digest
from flaxformer.checkpoint.marker import NAME as MARKER
from flaxformer.checkpoint.marker import Marker
from flaxformer.devices.distributed import ProcessGroup
from flaxformer.system import files
from flaxformer.system.errors import UserError
from flaxformer.system.links import check_contents, check_file, check_folder

STATE = "state"
BATCH = 2**28
"""Bytes of whole arrays that are read at a time, or one array if it is larger."""


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


def write_step(folder: Path, marker: Marker, arrays: Mapping[str, HostArray], processes: ProcessGroup) -> None:
    """Write the arrays of a new step, flush them, read them back and compare; only then write the marker.

    Args:
      folder: the folder of the steps.
      marker: the marker without digests.
      arrays: the arrays, or the shards that this process has of them.
      processes: those that call this function together.
    """
    target = folder / str(marker.step)
    state, stored = target / STATE, {name: array for name, array in arrays.items() if array.size}
    check_folder(target)

    def start() -> None:
        target.mkdir()
        state.mkdir()

    def complete() -> list[str]:
        storage.merge(state)
        files.flush_all(target)
        return files.file_names(state)

    try:
        processes.run_first(start)
        processes.run(lambda: storage.write(state, stored))
        if processes.count > 1:  # no other machine can flush what this one has not sent yet
            processes.run(lambda: files.flush_all(target))
        names = processes.run_first(complete)
        contents = processes.run(lambda: files.digest_files(state, processes.share(names)))
        digests = processes.run(lambda: _digest_written(state, marker.leaves, stored, processes))
        empty = {name: digest(b"") for name in arrays if name not in stored}
        marker = dataclasses.replace(marker, files=_union(contents), digests=_union([*digests, empty]))
        processes.run_first(lambda: files.write_atomically(target / MARKER, marker.encode()))
    except BaseException:
        if processes.index == 0:
            with contextlib.suppress(OSError):  # the original error is raised; the next save removes remaining files
                files.remove(target, MARKER, settle=0.5)
        raise


def _digest_written(
    state: Path, leaves: Mapping[str, Leaf], arrays: Mapping[str, HostArray], processes: ProcessGroup
) -> dict[str, str]:
    """Compare arrays on disk with those of this process, and return the digests of the leaves that fall to it.

    Raises:
      DamagedStepError: an array on disk differs.
    """
    shardings = {name: sharding_of(array) for name, array in arrays.items()}
    shared = [name for name, sharding in shardings.items() if sharding is not None]
    whole = [name for name in arrays if shardings[name] is None] if processes.index == 0 else []
    digests = {}
    for name, array in _read_batches(state, leaves, shared + whole, shardings):
        if not has_same_bits(array, arrays[name]):
            raise DamagedStepError(f"{name} reads back differently")
        if isinstance(array, np.ndarray):
            digests[name] = digest(array)
    for name, array in _read_batches(state, leaves, processes.share(shared), {}):
        digests[name] = digest(np.asarray(array))
    return digests


def _read_batches(
    state: Path, leaves: Mapping[str, Leaf], names: Iterable[str], shardings: Mapping[str, Sharding | None]
) -> Iterator[tuple[str, HostArray]]:
    """Yield arrays with their names, reading about `BATCH` bytes at a time; those without a sharding are whole."""
    names = list(names)
    ends = itertools.accumulate(leaves[name].bytes for name in names)
    for _, batch in itertools.groupby(zip(ends, names, strict=True), key=lambda pair: pair[0] // BATCH):
        yield from storage.read(state, {name: shardings.get(name) for _, name in batch}).items()


def _union(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return dict(sorted(item for part in parts for item in part.items()))


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


def read_marker_together(folder: Path, step: int, processes: ProcessGroup) -> Marker:
    """Read the marker of a published step in every process; one that is damaged for one is damaged for all."""
    markers: list[Marker] = []
    _run_undamaged(processes, lambda: markers.append(read_marker(folder, step)))
    return markers[0]


def set_step_aside(folder: Path, step: int, error: DamagedStepError, report: Callable[[str], object]) -> str:
    """Rename a damaged step so that it no longer counts, and return and report what happened."""
    step_folder, action = folder / str(step), "it is being removed"
    try:
        # Without a marker, the step is being removed by another process, which has published a later one.
        if (step_folder / MARKER).exists():
            action = f"it is now {files.set_aside(step_folder, 'corrupt').name}"
    except OSError as failure:
        action = f"it could not be renamed ({failure})"
    message = f"step {step} of {folder} is corrupt: {error}; {action}"
    report(message)
    return message


def leaf_digests(folder: Path, step: int) -> dict[str, str]:
    """Return the digests of a published step's leaves.

    Raises:
      UserError: its marker is damaged, or that of another step.
    """
    try:
        return read_marker(folder, step).digests
    except DamagedStepError as error:
        raise UserError(f"step {step} of {folder} is damaged: {error}; remove the step to go on without it") from None


def read_arrays(
    folder: Path, marker: Marker, shardings: Mapping[str, Sharding | None], processes: ProcessGroup
) -> dict[str, HostArray]:
    """Read arrays of a published step, and compare the files and the arrays with the digests of its marker.

    Args:
      folder: the folder of the steps.
      marker: the marker of the step.
      shardings: of each array to read, the sharding of which this process reads its shards; None for all of it.
      processes: those that call this function together. Each digests some of the files and of the shared arrays.

    Raises:
      DamagedStepError: a file or an array is missing or differs, in any of the processes.
      UserError: a file is a symbolic link.
    """
    check_contents(folder / str(marker.step))
    state, arrays = folder / str(marker.step) / STATE, {}
    stored = {name: sharding for name, sharding in shardings.items() if 0 not in marker.leaves[name].shape}

    def check_files() -> None:
        names = processes.share(marker.files)
        contents = files.digest_files(state, names)
        for name in names:
            if contents.get(name) != marker.files[name]:
                raise DamagedStepError(f"{STATE}/{name} {'has changed' if name in contents else 'is missing'}")

    def read() -> None:
        shared = [name for name, sharding in stored.items() if sharding is not None]
        for name, array in _read_batches(state, marker.leaves, processes.share(shared), {}):
            _check_array(name, array, marker)
        arrays.update(storage.read(state, stored))
        for name, array in arrays.items():
            _check_array(name, array, marker)

    _run_undamaged(processes, check_files)
    _run_undamaged(processes, read)
    leaves = {name: marker.leaves[name] for name in shardings if name not in stored}
    return arrays | {name: np.zeros(leaf.shape, leaf.storage_dtype) for name, leaf in leaves.items()}


def _check_array(name: str, array: HostArray, marker: Marker) -> None:
    """Raise DamagedStepError unless an array, if it is whole, matches its digest."""
    leaf = marker.leaves[name]
    if (array.shape, str(array.dtype)) != (leaf.shape, leaf.storage_dtype):
        wanted = f"{leaf.storage_dtype}{list(leaf.shape)}"
        raise DamagedStepError(f"{name} is {array.dtype}{list(array.shape)}; expected {wanted}")
    if isinstance(array, np.ndarray) and digest(array) != marker.digests[name]:
        raise DamagedStepError(f"{name} does not match its digest")


def _run_undamaged(processes: ProcessGroup, read: Callable[[], object]) -> None:
    """Call `read` in every process.

    Raises:
      DamagedStepError: `read` raised it, or an error of reading, in any process.
    """

    def problem() -> str | None:
        try:
            read()
        except (MemoryError, UserError):
            raise
        except DamagedStepError as error:
            return str(error)
        except Exception as error:
            return f"it cannot be read ({first_line(error)})"
        return None

    if problems := list(filter(None, processes.run(problem))):
        raise DamagedStepError(problems[0])
