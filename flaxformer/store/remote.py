"""Output folders in object storage, such as s3://bucket/runs/study: a local copy in which commands work.

One process at a time writes a remote folder; it stores what has changed every few seconds, and at its end. Other
processes read its newest revision into a copy of their own. Paths of this machine are left as they are.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer.store import records, revisions
from flaxformer.store.local_copy import LocalCopy, folder_in
from flaxformer.store.local_files import UnstableError
from flaxformer.store.mirror import LostError, Mirror
from flaxformer.store.revisions import HeldError
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder
from flaxformer.system.objects import url_of
from flaxformer.system.remote_data import cache_folder, local_path

PERIOD = 5.0
"""Seconds after which files that have changed are stored, or fetched."""
LOCK_PATIENCE = 3600.0
"""Seconds to wait for another process of this machine that fetches the same folder."""
Notify = Callable[[str], object]


def to_stderr(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], needs_arrays: bool = True, is_patient: bool = True, notify: Notify = to_stderr
) -> Iterator[Path]:
    """Yield the local folder of an output folder; what is written there is stored in the remote one.

    Args:
      path: a path of this machine, or a URL.
      needs_arrays: fetch the arrays of checkpoints too.
      is_patient: wait until it is certain whether a silent process is dead; else it counts as alive.
      notify: called with a line on what was fetched, could not be stored, or was stored.

    Raises:
      HeldError: another process writes the remote folder.
      UserError: the remote folder and its local copy have both changed since they were the same, the store cannot be
        reached or has no conditional writes, or another process has taken over.
    """
    url = url_of(path)
    if url is None:
        yield Path(path)
        return
    place = cache_folder("written", url)
    with _locked(place, url):
        with records.writing(place):
            mirror = Mirror(url, place, needs_arrays)
            mirror.attach(is_patient)
        notify(f"{url} is written from its local copy, {mirror.folder}")
        try:
            with _pushing(mirror, notify):
                yield mirror.folder
        except BaseException as error:
            _end_after(error, mirror, notify)
            raise
        mirror.push(release=True)
        notify(f"{url} has all files of {mirror.folder}")


@contextlib.contextmanager
def _locked(place: Path, url: str) -> Iterator[None]:
    """Hold a local copy for one process of this machine.

    Raises:
      HeldError: another process holds it.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock_folder(place, f"writing {url}"))
        except UserError as error:
            raise HeldError(str(error)) from None
        yield


def _end_after(error: BaseException, mirror: Mirror, notify: Notify) -> None:
    """Store what there is and end the writing, after an exception, which is the one to raise.

    Raises:
      LostError: another process has taken over, for which this one was interrupted.
    """
    try:
        mirror.push(release=True)
    except LostError:
        if isinstance(error, KeyboardInterrupt):
            raise
    except UserError as failure:
        notify(f"{failure}; what is not stored is in {mirror.folder}")


@contextlib.contextmanager
def _pushing(mirror: Mirror, notify: Notify) -> Iterator[None]:
    """Within, a thread stores what has changed, every `PERIOD` seconds; it interrupts a process that was replaced."""

    def push() -> bool:
        try:
            mirror.push()
        except LostError as error:
            notify(str(error))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return False
        except UnstableError:
            pass
        except UserError as error:
            notify(f"{error}; it is tried again")
        return True

    with _repeating(push):
        yield


@contextlib.contextmanager
def _repeating(call: Callable[[], bool]) -> Iterator[None]:
    """Within, a thread calls a function every `PERIOD` seconds, until it returns False."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(PERIOD) and call():
            pass

    thread = threading.Thread(target=repeat, name="remote folder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def reading(
    path: str | os.PathLike[str], needs_arrays: bool = False, follows: bool = False, notify: Notify = to_stderr
) -> Iterator[Path]:
    """Yield the local folder of an output folder; of a remote one, a copy whose changes are not stored.

    Args:
      path: a path of this machine, or a URL.
      needs_arrays: fetch the arrays of checkpoints too.
      follows: fetch newer revisions while the folder is read.
      notify: called with a line on what could not be fetched.

    Raises:
      UserError: there is nothing at the URL, or it cannot be read.
    """
    url = url_of(path)
    if url is None:
        yield Path(path)
        return
    folder = read_copy(url, needs_arrays)

    def fetch() -> bool:
        try:
            read_copy(url, needs_arrays)
        except UserError as error:
            notify(f"{error}; it is tried again")
        return True

    with _repeating(fetch) if follows else contextlib.nullcontext():
        yield folder


def folder_of(url: str) -> Path:
    """Return the local folder from which a remote one is written, which need not exist."""
    return folder_in(cache_folder("written", url), url)


def read_copy(url: str, needs_arrays: bool = True) -> Path:
    """Fetch the newest revision of a remote folder, and return the folder of the copy.

    Raises:
      UserError: there is nothing at the URL, or it cannot be read.
    """
    place = cache_folder("read", url)
    with lock_folder(place, f"reading {url}", LOCK_PATIENCE), records.writing(place):
        copy = LocalCopy(url, place, needs_arrays)
        copy.fetch()
    return copy.folder


@contextlib.contextmanager
def showing(path: str | os.PathLike[str], needs_arrays: bool = False, notify: Notify = to_stderr) -> Iterator[Path]:
    """Yield the local folder of an output folder whose results are shown, which its log of declarations records.

    A remote folder that no process writes is written for it; of another one, a copy is read and nothing is recorded.
    """
    url = url_of(path)
    with contextlib.ExitStack() as opened:
        if url is not None and revisions.newest(url) is None:
            raise UserError(f"{url} holds no results; expected the --output of a command")
        try:
            folder = opened.enter_context(writing(path, needs_arrays, is_patient=False, notify=notify))
        except HeldError as error:
            notify(f"{error}; its newest revision is shown, and nothing is recorded there")
            folder = opened.enter_context(reading(path, needs_arrays))
        yield folder


def find_folder(path: str | os.PathLike[str], name: str = "path") -> Path:
    """Return the local folder or file of a path, with weights; that of a URL is fetched.

    Args:
      path: a path of this machine, the URL of an output folder, or that of other objects.
      name: of the path in messages.

    Raises:
      UserError: there is nothing at the URL, or it cannot be read.
    """
    url = url_of(path)
    if url is not None and revisions.newest(url) is not None:
        return read_copy(url)
    return local_path(path, name)
