"""Folders in object storage that a command names, such as --output s3://bucket/study, as local folders of the command.

A command with an --output, and `measure` and `verify`, write the folder, for which one process at a time is admitted.
`report`, `compare` and `replicate` write it too, where no other process does: its log records that results were shown,
and attempts to replicate them. Other commands read a copy.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flaxformer.system.errors import UserError
from flaxformer.system.objects import url_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FIELDS = ("output", "directory", "a", "b")
"""Arguments that are output folders."""
WRITE = ("measure", "verify")
"""Commands that write the folder DIR that they are about."""
SHOW = ("report", "compare", "replicate")
"""Commands that show the results of DIR, which its log records."""
NEED_ARRAYS = ("run", "train", "measure", "generate", "improve")
"""Commands that read the arrays of checkpoints."""
LEFT = ("prepare", "plan")
"""Commands whose --output is no folder of results, or is not used."""


def remote_fields(command: object) -> dict[str, str]:
    """Return the URLs among a command's folders, by the names of their arguments.

    Raises:
      UserError: a URL is given for another kind of path.
    """
    paths = {name: value for name, value in vars(command).items() if isinstance(value, Path)}
    urls = {name: url for name, path in paths.items() if (url := url_of(path)) is not None}
    for name, url in urls.items():
        if name not in FIELDS:
            raise UserError(f"{name} is '{url}'; expected a path of this machine")
    return urls


@contextlib.contextmanager
def local_folders(name: str, command: object) -> Iterator[object]:
    """Yield a command with local folders in place of its remote ones.

    Args:
      name: name of the command.
      command: its arguments.

    Raises:
      UserError: a remote folder cannot be used in this way, or is written by another process.
    """
    is_left = name in LEFT or getattr(command, "plan", False)
    urls = {} if is_left else remote_fields(command)
    if not urls:
        yield command
        return
    if name == "replicate" and getattr(command, "output", None) is None:
        urls["output"] = f"{urls['directory']}-replication"
    _check_workers(command, urls)
    with contextlib.ExitStack() as opened:
        fields = {url: field for field, url in urls.items()}
        places = {url: _open(opened, name, field, url, command) for url, field in fields.items()}
        folders = {field: places[url] for field, url in urls.items()}
        yield dataclasses.replace(cast("DataclassInstance", command), **folders)


def _check_workers(command: object, urls: dict[str, str]) -> None:
    """Refuse workers that would write a remote folder together.

    Raises:
      UserError: what to do instead.
    """
    share, launcher = getattr(command, "share", None), getattr(command, "launcher", None)
    if share is not None or launcher in ("slurm", "ray"):
        option = f"--share {share}" if share is not None else f"--launcher {launcher}"
        raise UserError(
            f"{option} is given with --output {urls['output']}, which one process at a time writes; expected "
            "--launcher local, or a folder on a file system that all workers share"
        )


def _open(opened: contextlib.ExitStack, name: str, field: str, url: str, command: object) -> Path:
    """Open a remote folder for a command until `opened` is closed, and return the local one."""
    remote = importlib.import_module("flaxformer.store.remote")
    needs_arrays = name in NEED_ARRAYS
    if not _is_first_process(command):
        return Path(remote.folder_of(url))
    if field == "output" or name in WRITE:
        context = remote.writing(url, needs_arrays)
    elif name in SHOW:
        context = remote.showing(url)
    else:
        follows = bool(getattr(command, "watch", False)) or getattr(command, "serve", None) is not None
        context = remote.reading(url, needs_arrays, follows)
    return Path(opened.enter_context(context))


def _is_first_process(command: object) -> bool:
    """True for the first of several processes that train a run together, which alone uses its folder."""
    if not hasattr(command, "coordinator") or getattr(command, "launcher", None) is not None:
        return True
    distributed = importlib.import_module("flaxformer.devices.distributed")
    distributed.initialize(*(vars(command)[name] for name in ("coordinator", "processes", "process")))
    return not distributed.is_initialized() or bool(distributed.is_coordinator())
