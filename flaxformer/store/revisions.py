"""Revisions of a folder in object storage: its numbered states, of which the newest also names the process that writes.

    URL/revisions/NUMBER.json     one state: who writes, and the table of its files
    URL/tables/PUSH.json          a table: path, push, size, digest and time of every file
    URL/objects/PUSH/PATH         the content of a file; PUSH is NUMBER-TOKEN, of the revision that it was stored for

Revision N + 1 is made by a conditional write, by a process that has read revision N: of several processes one succeeds,
and the others learn that they are late. The order of the revisions is therefore the order of all changes, and a process
that was suspended and comes back can change nothing. An object is never written twice: PUSH is another one for every
writing. What the first revision of a process does not name, and was stored for it or for an earlier one, no later
revision names, since whoever stored it is too late: it can be removed. Only the newest revision is needed; clocks are
not compared, and besides conditional writes the store only has to list what was written.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec

from flaxformer.store.leases import machine, owner_is_gone, start_time
from flaxformer.system import digests, objects
from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import Record, convert, plain

FORMAT = 1
HEARTBEAT, EXPIRY = 10.0, 6
"""Seconds between two revisions of a process that writes, and the missing ones after which it counts as dead."""
MOST_ANCESTORS = 100
READS = 20
"""Number of times that a revision is read which is replaced while it is read."""
PUSH = re.compile(r"(?P<number>\d{10})-[0-9a-f]{12}")
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class RemoteFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a table: the push that stored it, its bytes, its digest, and its time in seconds since 1970."""

    push: Annotated[str, msgspec.Meta(pattern=f"^{PUSH.pattern}$")]
    bytes: Size
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    time: float


FileTable: TypeAlias = dict[str, RemoteFile]


class _TableFile(Record, frozen=True):
    files: FileTable


class Revision(Record, frozen=True):
    """One state of a remote folder.

    number: its place in the order.
    owner: token of the process that writes the folder; empty if none does.
    host, pid, machine, born: that process (`store.leases`).
    heartbeat: seconds between two revisions of it.
    table: the push of its table; empty for a folder without files.
    table_digest: digest of the table.
    ancestors: the last tables of earlier processes.
    """

    format: int
    number: Size
    owner: str = ""
    host: str = ""
    pid: int = 0
    machine: str | None = None
    born: str | None = None
    heartbeat: Annotated[float, msgspec.Meta(gt=0, le=3600)] = HEARTBEAT
    table: Annotated[str, msgspec.Meta(pattern=f"^({PUSH.pattern})?$")] = ""
    table_digest: str = ""
    ancestors: tuple[str, ...] = ()


class HeldError(UserError):
    """Another process writes the folder."""


def newest(url: str) -> Revision | None:
    """Return the newest revision of a remote folder; None if it has none.

    Raises:
      UserError: it cannot be read, or another program wrote it.
    """
    for _ in range(READS):
        numbers = [int(name[:10]) for name in objects.find(f"{url}/revisions") if re.fullmatch(r"\d{10}\.json", name)]
        if not numbers:
            return None
        place = _place(url, max(numbers))
        try:
            revision = convert(digests.parse_document(objects.read(place)), Revision)
        except FileNotFoundError:  # a newer one was made meanwhile
            continue
        except DamagedError as error:
            raise UserError(f"{place} is damaged ({error}); expected a revision as 'run' writes it") from None
        if revision.format != FORMAT or revision.number != max(numbers):
            raise UserError(
                f"{place} has format {revision.format}, number {revision.number}; expected {FORMAT}, and its name"
            )
        return revision
    raise UserError(f"{url}/revisions changes faster than it can be read; run the same command again")


def append(url: str, revision: Revision) -> bool:
    """Make the next revision; False if another process was faster. Earlier ones are removed."""
    if not objects.create(_place(url, revision.number), digests.document(plain(revision))):
        return False
    numbers = {name: int(name[:10]) for name in objects.find(f"{url}/revisions") if re.fullmatch(r"\d{10}\.json", name)}
    if max(numbers.values(), default=0) > revision.number:  # its number is an old one, which was removed
        return False
    objects.delete([f"{url}/revisions/{name}" for name, number in numbers.items() if number < revision.number])
    return True


def take(
    url: str,
    is_patient: bool = True,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Revision:
    """Become the process that writes a folder, and return the revision that says so.

    A process of this machine that has ended is recognised at once; another counts as dead after `EXPIRY` heartbeats
    without a new revision, while this process observes it.

    Args:
      is_patient: wait until it is certain whether a silent process is dead; else it counts as alive.

    Raises:
      HeldError: another process writes the folder.
    """
    seen, since = -1, clock()
    while True:
        current = newest(url)
        if current is None:
            objects.check_conditional_writes(url)
        is_free = current is None or not current.owner or owner_is_gone(plain(current))
        if current is not None and current.number != seen:
            if not is_free and (seen >= 0 or not is_patient):
                raise HeldError(
                    f"{url} is being written by process {current.pid} on {current.host}; wait for it, or give another "
                    "--output (--launcher local trains in several processes of one machine)"
                )
            seen, since = current.number, clock()
        if is_free or (current is not None and clock() - since >= EXPIRY * current.heartbeat):
            mine = _taken(current)
            if append(url, mine):
                return mine
            seen = -1
        elif current is not None:
            sleep(current.heartbeat / 4)


def _taken(current: Revision | None) -> Revision:
    """The revision that follows another one, of this process, with the same files."""
    ancestors = () if current is None or not current.table else (*current.ancestors, current.table)
    return Revision(
        format=FORMAT,
        number=1 if current is None else current.number + 1,
        owner=secrets.token_hex(6),
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=machine(),
        born=start_time(os.getpid()),
        heartbeat=HEARTBEAT,
        table="" if current is None else current.table,
        table_digest="" if current is None else current.table_digest,
        ancestors=tuple(dict.fromkeys(ancestors))[-MOST_ANCESTORS:],
    )


def push_name(number: int) -> str:
    """Return a name for what is stored for a revision, which no other process uses."""
    return f"{number:010d}-{secrets.token_hex(6)}"


def read_table(url: str, revision: Revision) -> FileTable:
    """Return the table of a revision.

    Raises:
      FileNotFoundError: it was removed, since there is a newer one.
      UserError: it is damaged, or a path in it leads out of the folder.
    """
    if not revision.table:
        return {}
    place = f"{url}/tables/{revision.table}.json"
    data = objects.read(place)
    try:
        if digests.digest(data, 16) != revision.table_digest:
            raise DamagedError("its digest differs")
        files = convert(digests.parse_document(data), _TableFile).files
    except DamagedError as error:
        raise UserError(f"{place} is damaged ({error}); expected a table as 'run' writes it") from None
    for path in files:
        if not is_stored(path):
            raise UserError(
                f"{place} has the path {path!r}, which is none of an output folder; expected one that 'run' writes"
            )
    return files


def write_table(url: str, push: str, files: Mapping[str, RemoteFile]) -> str:
    """Store a table, and return its digest."""
    rows = {path: msgspec.to_builtins(file) for path, file in sorted(files.items())}
    data = digests.document({"files": rows})
    if not objects.create(f"{url}/tables/{push}.json", data):
        raise UserError(f"{url}/tables/{push}.json exists; expected a new name")
    return digests.digest(data, 16)


def is_stored(path: str) -> bool:
    """True for the path of a file that is stored: below the folder, no hidden file, and no lease of a process."""
    parts = path.split("/")
    is_hidden = any(part.startswith(".") for part in parts)
    return all(map(objects.is_name, parts)) and not is_hidden and parts[-2:-1] != ["leases"]


def place_of(url: str, path: str, file: RemoteFile) -> str:
    """Return the URL of a file's content."""
    return f"{url}/objects/{file.push}/{path}"


def _place(url: str, number: int) -> str:
    return f"{url}/revisions/{number:010d}.json"


def remove_unused(url: str, revision: Revision, files: Mapping[str, RemoteFile]) -> None:
    """Remove what earlier processes stored and no revision from this one on can name."""
    used = {f"objects/{file.push}/{path}" for path, file in files.items()} | {f"tables/{revision.table}.json"}
    unused = []
    for name in objects.find(url):
        match = re.match(rf"(objects|tables)/{PUSH.pattern}", name)
        if match and int(match["number"]) <= revision.number and name not in used:
            unused.append(f"{url}/{name}")
    objects.delete(unused)
