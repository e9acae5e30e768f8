"""A save of one step by one or several processes, after what earlier ones have left is removed."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from flaxformer.checkpoint.errors import DamagedStepError
from flaxformer.checkpoint.host_arrays import HostArray, has_same_bits, sharding_of
from flaxformer.checkpoint.marker import NAME as MARKER
from flaxformer.checkpoint.marker import Marker
from flaxformer.checkpoint.steps import read_arrays, read_marker_together, set_step_aside, step_numbers, write_step
from flaxformer.devices.distributed import ProcessGroup
from flaxformer.system import files
from flaxformer.system.errors import UserError

MARGIN = 16 * 2**20
"""Bytes that must stay free on the disk, beside a tenth of the save's size: for metadata, logs and other files."""


def save_step(
    folder: Path,
    marker: Marker,
    arrays: Mapping[str, HostArray],
    processes: ProcessGroup,
    report: Callable[[str], object],
) -> None:
    """Write and publish a step, unless it is published already; a damaged one is renamed and written again.

    Args:
      folder: the folder of the steps, created if it does not exist.
      marker: the marker without digests.
      arrays: the arrays, or the shards that this process has of them.
      processes: those that call this function together.
      report: called with one line for each problem that was handled, in the first process.

    Raises:
      UserError: the step is published with other arrays.
      Exception: the step could not be written, in any of the processes.
    """
    processes.run_first(lambda: _remove_unfinished(folder, report))
    if not _is_published(folder, marker, arrays, processes, report):
        processes.run_first(lambda: _check_room(folder, marker))
        write_step(folder, marker, arrays, processes)


def _remove_unfinished(folder: Path, report: Callable[[str], object]) -> None:
    """Remove steps without a marker, left by a process that was killed."""
    files.make_folder(folder)
    for step in step_numbers(folder, published=False):
        files.remove(folder / str(step), MARKER)
        report(f"removed step {step} of {folder}, which was never finished")


def _is_published(
    folder: Path,
    marker: Marker,
    arrays: Mapping[str, HostArray],
    processes: ProcessGroup,
    report: Callable[[str], object],
) -> bool:
    """True if the step is published with the same arrays; a damaged step is renamed and does not count."""
    if not processes.run_first(lambda: marker.step in step_numbers(folder, published=True)):
        return False
    shardings = {name: sharding_of(array) for name, array in arrays.items()}
    try:
        former = read_marker_together(folder, marker.step, processes)
        stored = read_arrays(folder, former, shardings, processes) if former.leaves == marker.leaves else {}
    except DamagedStepError as error:
        set_aside = functools.partial(set_step_aside, folder, marker.step, error, report)
        processes.run_first(set_aside)
        return False
    mine = [name for name in arrays if shardings[name] is not None or processes.index == 0]
    is_same = stored.keys() == arrays.keys() and all(has_same_bits(stored[name], arrays[name]) for name in mine)
    if not all(processes.run(lambda: is_same)):
        raise UserError("the step exists with another state")
    return True


def _check_room(folder: Path, marker: Marker) -> None:
    """Raise OSError unless the disk has room for a step."""
    size = sum(leaf.bytes for leaf in marker.leaves.values())
    needed, free = size + size // 10 + MARGIN, files.free_bytes(folder)
    if free < needed:
        raise OSError(f"the disk is full: a save needs {needed:,} bytes free, {free:,} are")
