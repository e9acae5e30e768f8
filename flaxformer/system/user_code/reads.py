"""Files, folders and environment variables that user code reads: what a result depends on and is not code.

An audit hook of Python (PEP 578) sees every file that is opened and every folder that is listed, and a subclass of the
class of `os.environ` every variable that is read. A read counts if user code made it while the package ran it: while a
study or job file was imported, or while a function of it was traced or called. It is recorded with a digest of what
was there at the time of the read.

The call stack decides, from the read outwards. A read counts if a frame of user code comes first, and a frame of the
package or of JAX further out. It does not count if it belongs to an import, or if a frame of the package comes first:
the data of tasks, tokenizers and initial weights have digests of their own. What user code has written itself does not
count either.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from flaxformer.system.user_code.contents import digest, is_irrelevant
from flaxformer.system.user_code.source import INSTALLED_IN, PACKAGE, is_user_file

IMPORTS = ("importlib", "zipimport", "linecache", "inspect", "tokenize", "traceback")
"""Standard modules that read source files on their own account."""
OWN_VARIABLES = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax", "matplotlib", "polars", "rich")
"""Packages whose own reads of environment variables do not count, such as of XLA_FLAGS."""
EnvironmentMapping = MutableMapping[str, str]
EVENTS = {
    "open": "file",
    "os.rename": "file",
    "os.listdir": "folder",
    "os.scandir": "folder",
    "glob.glob": "pattern",
    "pathlib.Path.glob": "pattern",
    "pathlib.Path.rglob": "pattern",
}
"""Audit events that are recorded, with the kind of what is read or written."""


WRITTEN = "written"
"""Digest of a file or a variable that user code has written after it was read, so that it does not count."""


class Read(NamedTuple):
    """A read by user code: its kind and absolute name, its digest, and the user files on the call stack.

    The first of these files made the read; the others, from the innermost outwards, called it.
    """

    kind: str
    name: str
    digest: str
    readers: tuple[str, ...]


class _State:
    """Reads of this process, and the functions that are told of each new one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reads: dict[tuple[str, str], list[Read]] = {}
        self.written: set[tuple[str, str]] = set()
        self.listeners: list[Callable[[Read], None]] = []
        self.inside = threading.local()
        """`busy` is true while a thread digests what was read, which reads it again, and within `unrecorded`."""
        self.is_installed = False


_state = _State()


def install() -> None:
    """Begin to record the reads of this process; a second call does nothing. An audit hook cannot be removed."""
    if not _state.is_installed:
        _state.is_installed = True
        sys.addaudithook(_audit)
        for name in ("environ", "environb"):
            if (variables := getattr(os, name, None)) is not None:
                variables.__class__ = _recording_class(type(variables))


def all_reads() -> list[Read]:
    """Return what user code has read in this process so far; of equal names, what was read last."""
    with _state.lock:
        return [
            read
            for reads_of_name in _state.reads.values()
            for read in reads_of_name
            if read.digest == reads_of_name[-1].digest
        ]


def forget(file: str) -> None:
    """Forget what the code of a user file has read, since it is executed again."""
    with _state.lock:
        for key, reads_of_name in _state.reads.items():
            _state.reads[key] = [read for read in reads_of_name if read.readers[0] != file]


def listen(listener: Callable[[Read], None]) -> Callable[[], None]:
    """Call a function for each new read; the result ends that."""
    _state.listeners.append(listener)
    return lambda: _state.listeners.remove(listener)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Leave out what this thread reads and writes within the block: user code runs there that can change no result."""
    before = getattr(_state.inside, "busy", False)
    _state.inside.busy = True
    try:
        yield
    finally:
        _state.inside.busy = before


def is_written(kind: str, name: str) -> bool:
    """True if user code has written a file or a variable in this process."""
    return (kind, name) in _state.written


# --- events --------------------------------------------------------------------------------------------------


def _audit(
    event: str,
    arguments: tuple[object, ...],
    events: Mapping[str, str] = EVENTS,
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """Record an audit event, if user code caused it.

    Default arguments outlive the names of the module, which the interpreter clears before its last events.
    """
    kind = events.get(event)
    if kind is None or is_finalizing() or getattr(_state.inside, "busy", False) or not arguments:
        return
    argument = "." if arguments[0] is None else arguments[1] if event == "os.rename" else arguments[0]
    if not isinstance(argument, str | bytes | os.PathLike):
        return  # an open file, by its number
    path = os.path.abspath(os.fsdecode(argument))
    if event.startswith("pathlib."):
        path = os.path.join(path, *(["**"] if event.endswith("rglob") else []), str(arguments[1]))
    if event != "open" or not os.path.isdir(path):
        writes = event == "os.rename" or (event == "open" and _writes(*arguments[1:]))
        _record(kind, path, event, writes)


def _writes(mode: object, flags: object) -> bool:
    """True if a file is opened to be written, and what it held before is not read."""
    if isinstance(mode, str):
        return "w" in mode or "x" in mode or ("a" in mode and "+" not in mode)
    assert isinstance(flags, int), "an open without a mode has flags"
    begins = flags & os.O_TRUNC or (flags & os.O_CREAT and flags & os.O_EXCL)
    return bool(begins) or flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY


def _recording_class(kind: type[EnvironmentMapping]) -> type:
    """Return a subclass of the class of `os.environ` that records which variables are read and written."""

    def text(name: str) -> str:
        return os.fsdecode(name) if isinstance(name, str | bytes) else ""

    def get(self: EnvironmentMapping, name: str) -> str:
        if text(name):
            _record_variable(text(name))
        return kind.__getitem__(self, name)

    def contains(self: EnvironmentMapping, name: str) -> bool:
        if text(name):
            _record_variable(text(name))
        return bool(kind.__contains__(self, name))

    def iterate(self: EnvironmentMapping) -> Iterator[str]:
        _record_variable("")
        yield from kind.__iter__(self)

    def write(self: EnvironmentMapping, name: str, value: str) -> None:
        _record_variable(text(name), writes=True)
        kind.__setitem__(self, name, value)

    def remove(self: EnvironmentMapping, name: str) -> None:
        _record_variable(text(name), writes=True)
        kind.__delitem__(self, name)

    methods = {"__getitem__": get, "__contains__": contains, "__iter__": iterate} | {
        "__setitem__": write,
        "__delitem__": remove,
    }
    return type(kind.__name__, (kind,), methods)


def _record_variable(name: str, writes: bool = False) -> None:
    if not (sys.is_finalizing() or getattr(_state.inside, "busy", False)):
        _record("variable", name, "", writes)


def _record(kind: str, name: str, event: str, writes: bool) -> None:
    """Record a read or a write, if user code caused it, and tell the listeners of a new read."""
    _state.inside.busy = True
    try:
        if is_irrelevant(kind, name) or not (readers := _readers(kind, event)):
            return
        with _state.lock:
            if writes:
                _state.written.add((kind, name))
                if _state.reads.get((kind, name)):
                    _add(Read(kind, name, WRITTEN, readers))
            elif (kind, name) not in _state.written:
                _add(Read(kind, name, digest(kind, name), readers))
    finally:
        _state.inside.busy = False


def _add(read: Read) -> None:
    reads_of_name = _state.reads.setdefault(read[:2], [])
    is_new = read not in reads_of_name
    reads_of_name[:] = [*(earlier for earlier in reads_of_name if earlier != read), read]
    for listener in list(_state.listeners) if is_new else ():
        listener(read)


# --- the call stack --------------------------------------------------------------------------------------------


def _readers(kind: str, event: str) -> tuple[str, ...]:
    """Return the user files on the call stack if a read counts, else nothing."""
    readers: dict[str, None] = {}
    through: set[tuple[str, str]] = set()
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        frame = frame.f_back
        owner = _owner(code.co_filename)
        if owner == "user":
            readers[code.co_filename] = None
        elif readers:
            if owner in ("flaxformer", "installed jax"):
                return tuple(readers)
        elif code.co_filename != __file__:
            through.add((owner, code.co_name))
            if not _passes(owner, kind):
                return ()
        if readers and event == "os.scandir" and _is_search(through):
            return ()  # the pattern is recorded
    return ()


def _passes(owner: str, kind: str) -> bool:
    """True if a read that came through a frame of this owner may be of user code further out."""
    if owner == "flaxformer" or owner in IMPORTS:
        return False
    if kind != "variable":
        return True
    # What other standard modules read is their own affair, such as HOME and TMPDIR.
    name = owner.removeprefix("installed ")
    return owner in ("os", "_collections_abc") or (name != owner and name not in OWN_VARIABLES)


def _is_search(through: set[tuple[str, str]]) -> bool:
    """True if a folder was listed to find the files of a pattern."""
    owners = {owner for owner, _ in through}
    return bool(owners & {"glob", "pathlib"}) and not through & {("pathlib", "walk"), ("os", "walk")}


@functools.cache
def _owner(file: str) -> str:
    """Return "user", "flaxformer", "installed NAME", or the name of a standard module."""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">").split(".")[0]
    path = Path(file)
    if path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "experiments"):
        return "flaxformer"
    if is_user_file(file):
        return "user"
    inside = next((folder for folder in INSTALLED_IN if folder in path.parts), None)
    if inside is not None:
        return f"installed {path.parts[path.parts.index(inside) + 1].removesuffix('.py')}"
    standard = Path(os.__file__).parent
    return path.relative_to(standard).parts[0].removesuffix(".py") if path.is_relative_to(standard) else path.stem
