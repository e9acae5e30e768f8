"""Named arrays in a folder, written and read by Orbax, which detects missing files but not changed bits.

Each of several processes writes its shards, and reads those that it needs. Orbax's handler, unlike its checkpointers,
makes no process wait for another: that is for the caller.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Sharding

from flaxformer.checkpoint.host_arrays import HostArray

if TYPE_CHECKING:
    import orbax.checkpoint as ocp


def write(folder: Path, arrays: Mapping[str, HostArray]) -> None:
    """Write arrays, or this process's part of them, into an existing folder; the first process writes whole ones.

    Raises:
      Exception: any error of Orbax; the folder may then hold some of the arrays.
    """
    import orbax.checkpoint as ocp
    from etils import epath

    _handler().save(epath.Path(folder.absolute()), args=ocp.args.PyTreeSave(dict(arrays)))


def merge(folder: Path) -> None:
    """Make one checkpoint of what the processes have written, in the first of them.

    Raises:
      Exception: any error of Orbax, such as for an array that no process has written.
    """
    from etils import epath

    _handler().finalize(epath.Path(folder.absolute()))


def read(folder: Path, shardings: Mapping[str, Sharding | None]) -> dict[str, HostArray]:
    """Read the arrays with these names: of each, the shards of this process, or for None the whole array.

    Raises:
      Exception: any error of Orbax, for a folder with missing files or damage that it detects.
    """
    import orbax.checkpoint as ocp
    from etils import epath

    def form(sharding: Sharding | None) -> ocp.RestoreArgs:
        if sharding is None:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding)

    forms = {name: form(sharding) for name, sharding in shardings.items()}
    wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(shardings, 0), restore_args=forms, partial_restore=True)
    arrays = _handler().restore(epath.Path(folder.absolute()), args=wanted)
    return {
        name: np.asarray(arrays[name]) if forms[name].restore_type is np.ndarray else arrays[name] for name in forms
    }


def _handler() -> "ocp.PyTreeCheckpointHandler":
    """Return Orbax's handler of trees; Orbax is imported by these functions, since that takes a second."""
    import orbax.checkpoint as ocp

    return ocp.PyTreeCheckpointHandler()
