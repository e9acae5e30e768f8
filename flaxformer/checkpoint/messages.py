"""Messages between threads of several processes that save a step: files in a folder that all of them see.

The devices are not used for it, since they belong to the threads that train meanwhile.
"""

import contextlib
import itertools
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax

from flaxformer.devices.distributed import ProcessGroup, all_processes
from flaxformer.system import files
from flaxformer.system.errors import UserError

PREFIX = ".saving-"
"""First letters of the names of these folders."""
PATIENCE = 600
"""Seconds that a process waits for the slowest one."""


def new_folder(run: Path) -> Path:
    """Create and return a folder of messages in a run's folder; those that a kill has left are removed.

    Raises:
      OSError: it cannot be created.
    """
    files.make_folder(run)
    for former in run.glob(f"{PREFIX}*"):
        shutil.rmtree(former, ignore_errors=True)
    folder = run / f"{PREFIX}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def shared_folder(folder: Path) -> Path:
    """Return a folder of the first process, which all of them see.

    Raises:
      UserError: a process does not.
    """
    processes = all_processes()
    first = Path(processes.run_first(lambda: str(folder.absolute())))

    def check() -> None:
        if not first.is_dir():
            raise UserError(f"it sees no folder {first}; expected a file system that all processes share")

    processes.run(check)
    return first


@contextlib.contextmanager
def processes_of_save(folder: Path) -> Iterator[ProcessGroup]:
    """Yield all processes, which exchange texts by files in a new folder; it is removed when all have read them.

    The exchange raises OSError if a process does not take part in time, or cannot write its file.
    """
    import orbax.checkpoint as ocp

    wait_at_barrier, turns = ocp.multihost.get_barrier_sync_fn(), itertools.count()
    index, count = jax.process_index(), jax.process_count()
    is_complete = True

    def wait_for_all(name: str) -> None:
        nonlocal is_complete
        try:
            wait_at_barrier(key=f"{folder.name} {name}", timeout_ms=1000 * PATIENCE)
        except jax.errors.JaxRuntimeError as error:
            is_complete = False
            raise OSError(f"a process has ended, or did not finish its part within {PATIENCE} s") from error

    def gather(text: str) -> list[str]:
        turn = str(next(turns))
        with contextlib.suppress(OSError):  # the others must not wait: they miss the file
            files.write_atomically(folder / f"{turn}.{index}", text.encode())
        wait_for_all(turn)
        return [(folder / f"{turn}.{other}").read_text() for other in range(count)]

    try:
        yield ProcessGroup(index, count, gather)
    finally:
        if is_complete:
            with contextlib.suppress(OSError):  # what was published stays, whatever has happened to the others since
                wait_for_all("end")
        if index == 0:
            shutil.rmtree(folder, ignore_errors=True)
