"""Log of a ledger, ledger.jsonl: a line per event, each with the digest of the line before it; lines are only added.

    {"kind": "begun", "declaration": {...}, "recipe": "…", "data": "…"}
    {"kind": "attempt", "number": 1, "reason": "…", "changes": ["optimizer.learning_rate=0.003"], ...}
    {"kind": "verdict", "number": 1, "verdict": "dropped", "pairs": 9, "results": "…"}
    {"kind": "confirmation", "metric": "test_loss", "seeds": [1000, 8]}

The digests show a line that was changed, removed or inserted, and ledger.head one at the end (`store.log_head`).
"""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

import flaxformer
from flaxformer.store import log_head, records
from flaxformer.system import digests
from flaxformer.system.digests import FormError, JsonObject
from flaxformer.system.links import check_file
from flaxformer.system.typed_data import Count, FiniteNumber, Int64, Probability, Record, convert, plain

NAME = "ledger.jsonl"
AttemptVerdict = Literal["kept", "dropped", "open", "unchanged", "failed", "withdrawn"]
"""End of an attempt: see `ledger.judge`; withdrawn by its author, it counts as one without effect."""


class LedgerEntry(Record, tag_field="kind", frozen=True, kw_only=True):
    """A line of the log."""

    time: str = ""
    """Time of the entry (UTC, ISO 8601)."""
    flaxformer: str = ""
    """Version of the package."""
    previous: str = ""
    """Digest of the line before it; empty for the first."""


class Begun(LedgerEntry, tag="begun", frozen=True, kw_only=True):
    """The first line: what the ledger holds fixed."""

    name: str
    effect: FiniteNumber
    metric: str
    unit: str
    goal: Literal["lower", "higher"]
    attempts: Count
    seeds: Count
    together: Count
    first_seed: Int64
    tuning_seeds: Count
    confirmation_seeds: Count
    false_keeps: Probability
    false_drops: Probability
    compare: JsonObject | None = None
    budget: str = ""
    """Cost that a run of the start may have."""
    steps: Int64 = 0
    """Its steps, by the budget; 0 without one."""
    recipe: str
    """Digest of the recipe of the start."""
    data: str
    """Digest of the evaluation examples."""
    semantics: Int64


class Attempt(LedgerEntry, tag="attempt", frozen=True, kw_only=True):
    """A candidate, before it is trained."""

    number: Int64
    reason: str
    changes: tuple[str, ...] = ()
    """Changes of the best recipe, or of the run of `file`, as on a command line."""
    file: str = ""
    """Path of the copied file that declares the candidate, from the ledger's folder."""
    adjusted: dict[str, Int64] = msgspec.field(default_factory=dict)
    """Fields that the comparison at equal cost adjusted, with their values."""
    best: str
    """Digest of the best recipe when the attempt began."""
    recipe: str
    """Digest of the candidate's recipe."""
    programs: Int64 = 2
    """Number of compiled programs; 1 if the candidate shares that of the best recipe."""
    rates: tuple[FiniteNumber, ...] = ()
    """Learning rates among which the candidate's was chosen; empty if it was not tuned."""
    notes: tuple[str, ...] = ()
    """Sentences on what the reader has to know, such as a learning rate that was not tuned."""


class Decision(LedgerEntry, tag="verdict", frozen=True, kw_only=True):
    """The end of an attempt."""

    number: Int64
    verdict: AttemptVerdict
    pairs: Int64
    """Number of pairs by which it was judged."""
    results: str
    """Digest of their scores."""


class Confirmation(LedgerEntry, tag="confirmation", frozen=True, kw_only=True):
    """The one comparison of the best recipe with the start, at seeds and on data that no attempt used."""

    metric: str
    attempts: Int64
    """Number of attempts before it."""


AnyEntry: TypeAlias = Begun | Attempt | Decision | Confirmation
EntryT = TypeVar("EntryT", bound=AnyEntry)


def read(root: Path) -> tuple[list[AnyEntry], list[str]]:
    """Return the sound entries of a ledger's log, and what is wrong with it."""
    entries: list[AnyEntry] = []
    path = root / NAME
    head = log_head.read(path)
    rows, faults = digests.lines(path)
    faults = [f"{NAME}, {fault}" for fault in faults]
    expected = ""
    for place, row in enumerate(rows, start=1):
        try:
            entry = convert(row, cast("type[AnyEntry]", AnyEntry))
        except FormError as error:
            faults.append(f"{NAME}, row {place}: {error}")
            continue
        if entry.previous != expected:
            faults.append(f"{NAME}, row {place}: it does not follow the row before it, which was changed or removed")
        expected = digest_of(entry)
        entries.append(entry)
    counted = log_head.line_digests(path)
    faults += log_head.faults(path, head, counted, is_used=len(counted) > 1)  # a kill may leave one line without a head
    return entries, [*faults, *_faults_of_order(entries)]


def _faults_of_order(entries: Sequence[AnyEntry]) -> Iterator[str]:
    """Entries in places where no command writes them."""
    number, is_open, is_confirmed = 0, False, False
    for place, entry in enumerate(entries, start=1):
        match entry:
            case Begun():
                expected, fits = "the first row, once", place == 1
            case Attempt():
                number += 1
                expected = f"attempt {number}, after a verdict on each one before it, and before a confirmation"
                fits = entry.number == number and not is_open and not is_confirmed and place > 1
                is_open = True
            case Decision():
                expected, fits = "one verdict on each attempt, after it", entry.number == number and is_open
                is_open = False
            case Confirmation():
                expected, fits = "one, after a verdict on each attempt", not is_open and not is_confirmed and place > 1
                is_confirmed = True
        if not fits:
            yield f"{NAME}, row {place} ({type(entry).__struct_config__.tag}) is out of place; expected {expected}"


def digest_of(entry: AnyEntry) -> str:
    """Return the digest of an entry, which the next one holds."""
    text = msgspec.json.encode(entry, order="sorted")
    return digests.digest(text)


def append(root: Path, entries: Sequence[AnyEntry], entry: EntryT) -> EntryT:
    """Add an entry after those that were read, with its time; it is on the disk when this returns.

    Raises:
      UserError: it cannot be written.
    """
    path = root / NAME
    for file in (path, log_head.head_of(path)):
        check_file(file)
    log_head.remove_torn_line(path)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    previous = digest_of(entries[-1]) if entries else ""
    written = replace(entry, time=now, flaxformer=flaxformer.__version__, previous=previous)
    records.append_line(path, plain(written))
    log_head.write(path, log_head.line_digests(path))
    return written
