"""Leases: the trials that each process trains in a folder that any number of processes share.

A lease is a file in DIR/leases, made by exclusive creation: one process gets it. While its owner lives, a thread
touches it every `heartbeat` seconds. Another process considers a lease dead after it has seen it untouched for ten
heartbeats by its own monotonic clock, so that clocks which jump or disagree have no effect; or at once, if the owner
was a process of the same machine that has ended. Two owners at a time are possible (one was suspended) and harmless:
results are stored by trial, and are the same whichever process trained it.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flaxformer.system.digests import read_again
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder
from flaxformer.system.json_reader import parse_json
from flaxformer.system.links import check_folder, check_not_dangling, output_folder

HEARTBEAT = 10.0
"""Seconds between two heartbeats."""
EXPIRY = 10
"""Number of missed heartbeats after which an owner counts as dead."""
LOCK_PATIENCE = 60.0
NAME = re.compile(r"(?P<group>.+?)(\.(?P<share>[0-9a-f]{12}))?\.lease")

Lease = dict[str, Any]
"""Contents of a lease file: group, trials (None if the file cannot be read: all), host, pid, started, heartbeat, token;
and the file's own `path` and `mtime`."""


def machine() -> str | None:
    """Return an identifier of this kernel's boot and process namespace; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def start_time(pid: int) -> str | None:
    """Start time of a process of this machine, in ticks since boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def owner_is_gone(lease: Lease) -> bool:
    """True if the owner was a process of this machine that has ended, which needs no clock."""
    here, pid = machine(), lease.get("pid")
    is_here = here is not None and lease.get("machine") == here
    return is_here and type(pid) is int and start_time(pid) != lease.get("born")


def expiry(lease: Lease, heartbeat: float = HEARTBEAT) -> float:
    """Seconds without a heartbeat after which an owner counts as dead, by the heartbeat in its lease if valid."""
    interval = lease.get("heartbeat")
    return EXPIRY * (interval if isinstance(interval, int | float) and 0 < interval <= 3600 else heartbeat)


@read_again
def read_lease(path: Path) -> Lease | None:
    """Read a lease file; None if it does not exist. An unreadable one counts as a lease on all trials of its group."""
    group = NAME.fullmatch(path.name)
    unknown: Lease = {"group": group["group"] if group else "", "trials": None, "token": None}
    try:
        about = path.lstat()
        content = parse_json(path.read_bytes()) if stat.S_ISREG(about.st_mode) else {}
        trials = content.get("trials") if isinstance(content, dict) else None
        whole = isinstance(trials, list) and all(isinstance(x, str) for x in (*trials, content.get("token")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise
        content, whole = {}, False
    return unknown | (content if whole else {}) | {"group": unknown["group"], "path": path, "mtime": about.st_mtime_ns}


def read_leases(folder: Path) -> list[Lease]:
    """All leases of a folder, alive or not."""
    leases = [read_lease(path) for path in sorted(folder.glob("*.lease")) if NAME.fullmatch(path.name)]
    return [lease for lease in leases if lease is not None]


class Leases:
    """The leases of this process in a folder, and its observation of others; leaving the context releases all.

    Args:
      folder: DIR/leases.
      heartbeat: seconds between two heartbeats.
      clock: monotonic seconds.
    """

    def __init__(
        self, folder: Path, heartbeat: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        output_folder(folder.parent)
        check_folder(folder)
        check_not_dangling(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.heartbeat, self._clock = folder, HEARTBEAT if heartbeat is None else heartbeat, clock
        self._mine: dict[str, str] = {}
        self._seen: dict[Path, tuple[tuple[int, str | None] | None, float]] = {}
        self._lock, self._stopping = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        for name in list(self._mine):
            with contextlib.suppress(OSError, UserError):
                self.release(name)

    @property
    def expiry(self) -> float:
        """Seconds after which this process's leases count as dead."""
        return EXPIRY * self.heartbeat

    def take(self, name: str, trials: Sequence[str]) -> list[str] | None:
        """Take the lease `name` (a group, or GROUP.SHARE) on the trials that no other process holds.

        Returns:
          the trials, or None if other processes hold all of them.
        """
        with self._lock:
            if name in self._mine or self.trials_of_others(name) is None:
                return None
            with lock_folder(self.folder, "taking leases", LOCK_PATIENCE):
                held = _trials_of(name, self._foreign(_group_of(name)))
                free = [] if held is None else [trial for trial in trials if trial not in held]
                return free if free and self._create(name, free) else None

    def _create(self, name: str, trials: Sequence[str]) -> bool:
        """Create the file of a lease; False if there is one of this name."""
        token, path = secrets.token_hex(16), self.folder / f"{name}.lease"
        content = {"token": token, "host": socket.gethostname(), "pid": os.getpid(), "born": start_time(os.getpid())}
        content |= {"machine": machine(), "started": time.time(), "heartbeat": self.heartbeat, "trials": trials}
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}; correct this, and run again") from error
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(content).encode())
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path} cannot be written: {error.strerror}; correct this, and run again") from error
        if not self._has_token(path, token):
            return False
        self._mine[name] = token
        return True

    @property
    def names(self) -> frozenset[str]:
        """The names of the leases that this process holds."""
        with self._lock:
            return frozenset(self._mine)

    def trials_of_others(self, name: str) -> Collection[str] | None:
        """The trials of a group, or of a share of it, that other living owners hold; None if they hold all of it."""
        return _trials_of(name, self.of_others(_group_of(name)))

    def of_others(self, group: str | None = None) -> list[Lease]:
        """Leases of other owners that are alive or were not observed for long enough; dead ones are removed."""
        with self._lock:
            return [
                lease
                for lease in self._foreign(group)
                if not self._dead(lease) or not self._remove(lease["path"], lease["token"], lease["mtime"])
            ]

    def _foreign(self, group: str | None = None) -> list[Lease]:
        """Leases of other owners, of a group or of all; also one that another process has taken over from this one."""
        return [
            lease
            for lease in read_leases(self.folder)
            if group in (None, lease["group"])
            and self._mine.get(lease["path"].name.removesuffix(".lease"), "") != lease["token"]
        ]

    def release(self, name: str) -> None:
        """Release a lease; its results must be on disk."""
        with self._lock:
            token = self._mine.pop(name, None)
            if token is not None:
                self._remove(self.folder / f"{name}.lease", token)

    def _dead(self, lease: Lease) -> bool:
        """True if the owner has ended, or gave no heartbeat for its expiry time while this process observed it."""
        stamp = (lease["mtime"], lease["token"])
        last, since = self._seen.get(lease["path"], (None, 0.0))
        if last != stamp:
            since = self._clock()
            self._seen[lease["path"]] = (stamp, since)
        return owner_is_gone(lease) or self._clock() - since >= expiry(lease, self.heartbeat)

    def _remove(self, path: Path, token: str | None, mtime: int | None = None) -> bool:
        """Remove a lease if it is unchanged; False if it has another token, or its owner gave a heartbeat."""
        with lock_folder(self.folder, "taking leases", LOCK_PATIENCE, only_removes=True):
            now = read_lease(path)
            if now is None:
                return True
            if now["token"] != token or (mtime is not None and now["mtime"] != mtime):
                return False
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"{path} cannot be removed: {error.strerror}; expected a lease file") from None
            self._seen.pop(path, None)
            return True

    def _has_token(self, path: Path, token: str) -> bool:
        lease = read_lease(path)
        return lease is not None and lease["token"] == token

    def _beat(self) -> None:
        while not self._stopping.wait(self.heartbeat):
            self.beat()

    def beat(self) -> None:
        """Give one heartbeat to every lease; forget those that another process has taken over."""
        with self._lock:
            for name, token in list(self._mine.items()):
                path = self.folder / f"{name}.lease"
                with contextlib.suppress(OSError):
                    if self._has_token(path, token):
                        os.utime(path)
                    else:
                        del self._mine[name]


def _group_of(name: str) -> str:
    """The group of a lease's name."""
    match = NAME.fullmatch(f"{name}.lease")
    return match["group"] if match else name


def _trials_of(name: str, leases: Sequence[Lease]) -> Collection[str] | None:
    """The trials that other owners of a group hold; None if that is all of what `name` stands for."""
    if any(lease["trials"] is None or lease["path"].name == f"{name}.lease" for lease in leases):
        return None
    return {trial for lease in leases for trial in lease["trials"]}


def wait_for_dead_leases(folder: Path, poll: float = 0.5) -> Lease | None:
    """Remove the leases of dead owners, waiting until that is certain; return a lease whose owner is alive, if any.

    An owner on another machine is alive if it gives a heartbeat, and dead if it gives none until its lease expires.
    """
    if not folder.exists():
        return None
    leases = Leases(folder)
    first = {lease["path"]: lease["mtime"] for lease in leases.of_others()}
    while other_leases := leases.of_others():
        for lease in other_leases:
            is_here = lease.get("machine") == machine()
            if is_here or first.get(lease["path"]) != lease["mtime"]:
                return lease
        time.sleep(poll)
    return None
