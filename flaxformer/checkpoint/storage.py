"""Named arrays in a folder, written and read by Orbax, which detects missing files but not changed bits."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import orbax.checkpoint as ocp


def write(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays into a new folder, which gets its final name when all are written.

    Raises:
      Exception: any error of Orbax; the folder, or a temporary one beside it, may then hold some of the arrays.
    """
    with _checkpointer() as checkpointer:
        checkpointer.save(folder.absolute(), dict(arrays))


def read(folder: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Read the arrays with these names.

    Raises:
      Exception: any error of Orbax, for a folder with missing files or damage that it detects.
    """
    import orbax.checkpoint as ocp

    how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=how, partial_restore=True)
    with _checkpointer() as checkpointer:
        arrays = checkpointer.restore(folder.absolute(), args=wanted)
    return {name: np.asarray(arrays[name]) for name in names}


def _checkpointer() -> "ocp.Checkpointer":
    """Return Orbax's checkpointer for trees; Orbax is imported here, since that takes a second."""
    import orbax.checkpoint as ocp

    # Only the first of several processes calls this function: Orbax must not wait for the others.
    single = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=single), multiprocessing_options=single)
