"""Append-only log of a study's declarations, with the results that existed at the time of each.

    declarations.jsonl   one line per entry, in the order of time
    declarations.head    the number of lines, and the digest of the last one

An entry is a declaration that differs from the one before it, or an event: an interim analysis (a report of unfinished
results), an attempt to replicate, or a verification. Every line holds the digest of the line before it, every result
holds the digest of the entry under which it was obtained, and the head counts the lines. A line that is changed,
inserted or removed afterwards, also the last one or all of them, is therefore detected, unless all of these are
replaced as well (`store.log_head`). Faults are written into the next entry, so that they last.

A folder that is deleted and run again leaves no trace: where that matters, publish the digest of the first entry, which
`flaxformer declare` prints, before you run.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

import flaxformer
from flaxformer.store import columns, log_head, records
from flaxformer.store.declaration import Declaration
from flaxformer.store.log_entries import DeclarationEntry, Entry, Interim, entry_of, read_entry
from flaxformer.store.places import RUNGS, SUPERSEDED
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.system.digests import DamagedError, digest, parse_line, read_or_empty
from flaxformer.system.errors import UserError
from flaxformer.system.links import check_file
from flaxformer.system.typed_data import plain

NAME, HEAD = "declarations.jsonl", "declarations.head"
FIRST = "0" * 32
"""Digest that the first line holds."""
ANY_ARM = ""
"""Name under which seeds of measurements, which belong to no arm, are listed."""
T = TypeVar("T", bound=Entry)
SeedsByArm = dict[str, list[int]]
PATIENCE = 1.0
"""Seconds that a command waits for another process before it gives up recording an event."""


@dataclasses.dataclass(frozen=True)
class DeclarationLog:
    """Entries of a folder's log, and its faults."""

    entries: list[Entry]
    digests: list[str]
    """Digest of every line."""
    faults: list[str]
    """Lines that were changed, inserted or removed, and those that earlier entries note."""
    unnoted: list[str]
    """The faults that no entry notes yet."""
    at_digest: Mapping[str, DeclarationEntry] = dataclasses.field(default_factory=dict)
    """The declaration that held when the log ended with the line of a digest."""

    @property
    def head(self) -> str:
        """Digest of the last line."""
        return self.digests[-1] if self.digests else FIRST

    @property
    def declarations(self) -> list[DeclarationEntry]:
        """The entries without the events."""
        return self.of(DeclarationEntry)

    def of(self, kind: type[T]) -> list[T]:
        """The entries of one kind."""
        return [entry for entry in self.entries if isinstance(entry, kind)]

    def faults_of(self, held: Mapping[str | None, int]) -> list[str]:
        """The faults of the lines, and one if results hold digests of entries that are not in the log.

        Args:
          held: number of results by the digest that they hold; None for results without one.
        """
        missing = sum(n for digest, n in held.items() if digest is not None and digest not in self.digests)
        lost = f"{missing} of {sum(held.values())} results were obtained under a declaration that is not in the log"
        return [*self.faults, *([lost] if missing else [])]


def read(store: Store) -> DeclarationLog:
    """Read the log of a folder, and check its chain of digests and its head."""
    is_used = (store.root / "study.json").exists() or store.has_rows()
    path = store.root / NAME
    head = log_head.read(path)
    entries: list[Entry] = []
    digests: list[str] = []
    faults: list[str] = []
    noted: list[str] = []
    at_digest: dict[str, DeclarationEntry] = {}
    declared: DeclarationEntry | None = None
    for number, text in enumerate(read_or_empty(path).split(b"\n")[:-1], start=1):
        previous = digests[-1] if digests else FIRST
        digests.append(digest(text, 16))
        try:
            entry = read_entry(parse_line(text))
        except ValueError as error:
            faults.append(f"line {number} was changed or damaged ({error})")
            continue
        if entry.previous != previous:
            faults.append(f"line {number} does not follow the line before it")
            continue
        entries.append(entry)
        noted += entry.faults
        declared = entry if isinstance(entry, DeclarationEntry) else declared
        if declared is not None:
            at_digest[digests[-1]] = declared
    faults += log_head.faults(path, head, digests, is_used)
    unnoted = [fault for fault in faults if fault not in noted]
    return DeclarationLog(entries, digests, list(dict.fromkeys([*noted, *faults])), unnoted, at_digest)


def declare(store: Store, declaration: Declaration, existing: SeedsByArm) -> str:
    """Add a declaration to the log if it differs from the last one, and return the digest of the last entry.

    Call it under the store's lock, before anything is trained.

    Args:
      store: the study's folder.
      declaration: the study's declaration.
      existing: seeds that have a result, by arm.
    """
    log = read(store)
    entry = entry_of(declaration)
    if log.unnoted or not log.declarations or entry != _content(log.declarations[-1]):
        results = {arm: tuple(seeds) for arm, seeds in existing.items()}
        return append_entry(store, log, replace(entry, results=results))
    log_head.write(store.root / NAME, log.digests)  # a crash may have left it one line behind
    return log.head


def _content(entry: DeclarationEntry) -> DeclarationEntry:
    """An entry as `entry_of` made it."""
    return replace(entry, time="", flaxformer="", results={}, faults=(), previous="")


def record_event(store: Store, event: Entry) -> bool:
    """Add an event to the log; False if the folder cannot be written, has no log, or is held by another process."""
    _check_files(store)
    with contextlib.suppress(UserError), store.locked(PATIENCE):
        log = read(store)
        if log.digests:
            append_entry(store, log, event)
            return True
    return False


def record_interim_analysis(store: Store, finished: int, declared: int, reader: str) -> None:
    """Add an interim analysis to the log: results were shown before all were there.

    A folder that cannot be written, or that another process holds, is left as it is.

    Args:
      store: the study's folder.
      finished: number of results that were shown.
      declared: number of results of the whole study.
      reader: the command that showed them.
    """
    _check_files(store)
    with contextlib.suppress(UserError), store.locked(PATIENCE):
        log = read(store)
        if log.digests and finished not in [entry.finished for entry in log.of(Interim)]:
            append_entry(store, log, Interim(finished=finished, declared=declared, reader=reader))


def existing_results(store: Store, declaration: Declaration | None) -> SeedsByArm:
    """Return the seeds that have a result, by arm; seeds of measurements are under `ANY_ARM`.

    A result at a rung of a halving is one of its arm, and one that was set aside has existed.
    """
    by_arm: dict[str, set[int]] = {}
    for path in sorted((store.root / SUPERSEDED).glob("[0-9]*.parquet")):
        with contextlib.suppress(DamagedError, FileNotFoundError):
            for trial, seed in records.read_columns(path, lambda table: table.select("trial", "seed")).iter_rows():
                by_arm.setdefault(trial.rpartition(",seed=")[0], set()).add(seed)
    for folder in (store, *rung_stores(store)):
        for trial, status, seed in columns.read(folder, "seed").select("trial", "status", "seed").iter_rows():
            if status != "failed":
                by_arm.setdefault(trial.rpartition(",seed=")[0], set()).add(seed)
    if declaration is not None and declaration.kind == "probe":
        by_arm[ANY_ARM] = {row["seed"] for row in store.measurements(declaration)}
    return {arm: sorted(seeds) for arm, seeds in sorted(by_arm.items()) if seeds}


def rung_stores(store: Store) -> list[Store]:
    """Return the folders of the rungs of a halving."""
    return [Store(path) for path in sorted((store.root / RUNGS).glob("[0-9]*"))]


def arm_of(row: Row) -> str:
    """The name of the arm of a row."""
    return row.trial.rpartition(",seed=")[0]


def _check_files(store: Store) -> None:
    """Raise UserError if a file of the log is a symbolic link."""
    for path in (store.root / NAME, store.root / HEAD):
        check_file(path)


def append_entry(store: Store, log: DeclarationLog, entry: Entry) -> str:
    """Add an entry, with the faults of the log so far; then count it in the head. Returns the digest of its line."""
    _check_files(store)
    path = store.root / NAME
    log_head.remove_torn_line(path)
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    faults, version = tuple(log.unnoted), flaxformer.__version__
    line = plain(replace(entry, time=time, flaxformer=version, faults=faults, previous=log.head))
    read_entry(line)  # before it is written, as when it is read
    records.append_line(path, line)
    digests = log_head.line_digests(path)
    log_head.write(path, digests)
    return digests[-1]
