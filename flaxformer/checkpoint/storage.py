"""Arrays by name in a folder, written and read by Orbax, which sees that files are whole, not that bits are right."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays into a new folder, which appears under its name when all are in it.

    Raises:
      Exception: whatever Orbax raises; the folder, or one named like it, may then hold a part.
    """
    with _checkpointer() as checkpointer:
        checkpointer.save(folder.absolute(), dict(arrays))


def read(folder: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The arrays of these names.

    Raises:
      Exception: whatever Orbax raises on a folder that lacks something or is damaged where it can tell.
    """
    import orbax.checkpoint as ocp

    how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=how, partial_restore=True)
    with _checkpointer() as checkpointer:
        found = checkpointer.restore(folder.absolute(), args=wanted)
    return {name: np.asarray(found[name]) for name in names}


def _checkpointer() -> Any:
    """Orbax's writer and reader of trees; imported here, for the import takes a second."""
    import orbax.checkpoint as ocp

    # Of several processes the first alone comes here: Orbax is not to wait for the others.
    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)
