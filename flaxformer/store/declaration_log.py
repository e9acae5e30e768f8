"""Append-only log of a study's declarations, with the results that existed at the time of each.

    declarations.jsonl  one line per entry, in the order of time

An entry is a declaration that differs from the one before it, or an interim analysis: a report of unfinished results.
Every line holds the digest of the line before it, and every result holds the digest of the entry under which it was
obtained. A line that is changed, removed or inserted afterwards is therefore detected, unless all later lines and all
results are replaced as well. A folder that is deleted and run again leaves no trace: where that matters, publish the
digest of the last entry, which the report shows.
"""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import flaxformer
from flaxformer.digests import JsonObject, digest, line, parse_line, read_or_empty
from flaxformer.errors import UserError
from flaxformer.files import write_atomically
from flaxformer.store import columns, records
from flaxformer.store.rows import Row
from flaxformer.store.schema import check_entry
from flaxformer.store.store import Store

NAME = "declarations.jsonl"
FIRST = "0" * 32
"""Digest that the first line holds."""
ANY_ARM = ""
"""Name under which seeds of measurements, which belong to no arm, are listed."""
Kind = Literal["declaration", "earlier", "interim"]
"""Kind of an entry; "earlier" is the declaration of a folder that was made before it had a log."""
SeedsByArm = dict[str, list[int]]
INTERIM_PATIENCE = 1.0
"""Seconds that a report waits for another process before it gives up recording an interim analysis."""


@dataclasses.dataclass(frozen=True)
class DeclarationLog:
    """Entries of a folder's log, and its faults."""

    entries: list[JsonObject]
    digests: list[str]
    """Digest of every line."""
    faults: list[str]
    """Lines that were changed, removed or inserted."""

    @property
    def head(self) -> str:
        """Digest of the last line."""
        return self.digests[-1] if self.digests else FIRST

    @property
    def declarations(self) -> list[JsonObject]:
        """The entries without the interim analyses."""
        return [entry for entry in self.entries if entry["kind"] != "interim"]

    def faults_of(self, held: Mapping[str | None, int]) -> list[str]:
        """The faults of the lines, and one if results hold digests of entries that are not in the log.

        Args:
          held: number of results by the digest that they hold; None for results from before the log.
        """
        missing = sum(n for one, n in held.items() if one is not None and one not in self.digests)
        lost = f"{missing} of {sum(held.values())} results were obtained under a declaration that is not in the log"
        return [*self.faults, *([lost] if missing else [])]


def read(store: Store) -> DeclarationLog:
    """Read the log of a folder, and check its chain of digests."""
    path = store.root / NAME
    data = read_or_empty(path)
    entries: list[JsonObject] = []
    digests: list[str] = []
    faults = []
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        previous = digests[-1] if digests else FIRST
        digests.append(digest(text, 16))
        try:
            entry = parse_line(text)
            check_entry(entry)
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number} was changed or damaged ({error})")
            continue
        if entry.get("previous") == previous and entry.get("kind") in get_args(Kind):
            entries.append(entry)
        else:
            faults.append(f"line {number} does not follow the line before it")
    return DeclarationLog(entries, digests, faults)


def declare(store: Store, declaration: JsonObject, earlier: JsonObject | None, existing: SeedsByArm) -> str:
    """Add a declaration to the log if it differs from the last one, and return the digest of the last entry.

    Call it under the store's lock, before anything is trained.

    Args:
      store: the study's folder.
      declaration: the study's declaration, as plain data.
      earlier: content of study.json, for a folder without a log.
      existing: seeds that have a result, by arm.
    """
    log = read(store)
    if not log.digests and earlier is not None:
        _append(store, "earlier", _content(earlier) | {"results": existing}, log.head)
        log = read(store)
    content = json.loads(json.dumps(_content(declaration)))
    last = log.declarations[-1] if log.declarations else {}
    if any(last.get(name) != value for name, value in content.items()):
        _append(store, "declaration", content | {"results": existing}, log.head)
    return read(store).head


def record_interim_analysis(store: Store, finished: int, declared: int, reader: str) -> None:
    """Add an interim analysis to the log: results were shown before all were there.

    A folder that cannot be written, or that another process holds, is left as it is.

    Args:
      store: the study's folder.
      finished: number of results that were shown.
      declared: number of results of the whole study.
      reader: the command that showed them.
    """
    with contextlib.suppress(UserError), store.locked(INTERIM_PATIENCE):
        log = read(store)
        shown = [entry["finished"] for entry in log.entries if entry["kind"] == "interim"]
        if log.digests and finished not in shown:
            _append(store, "interim", {"finished": finished, "declared": declared, "reader": reader}, log.head)


def existing_results(store: Store, declaration: JsonObject) -> SeedsByArm:
    """Return the seeds that have a result, by arm; those of measurements under `ANY_ARM`."""
    found: dict[str, set[int]] = {}
    for trial, status, seed in columns.fixed(store, "seed").select("trial", "status", "seed").iter_rows():
        if status != "failed":
            found.setdefault(trial.rpartition(",seed=")[0], set()).add(seed)
    if declaration.get("kind") == "probe":
        found[ANY_ARM] = {row["seed"] for row in store.measurements(declaration)}
    return {arm: sorted(seeds) for arm, seeds in sorted(found.items()) if seeds}


def arm_of(row: Row) -> str:
    """The name of the arm of a row."""
    return row.trial.rpartition(",seed=")[0]


def _content(declaration: JsonObject) -> JsonObject:
    """The part of a declaration that an entry holds: claims with their rules, metric, seeds, arms, code and scaling."""
    return {
        "metric": declaration["metric"],
        "seeds": declaration["seeds"],
        "claims": declaration["claims"],
        "arms": {name: _digest_of(recipe) for name, recipe in declaration["recipes"].items()},
        "code": _code(declaration["recipes"].values(), declaration.get("code") or {}),
        "scaling": _without_counts(declaration.get("scaling")),
    }


def _without_counts(scaling: JsonObject | None) -> JsonObject | None:
    """The rule of a scaling law without the sizes of its arms, which follow from the recipes."""
    return None if scaling is None else {name: value for name, value in scaling.items() if name != "scales"}


def _code(recipes: Iterable[JsonObject], own: JsonObject) -> JsonObject:
    """Digests of all user code that the results depend on, by the name of the definition."""
    found = dict(own)
    for recipe in recipes:
        found |= recipe.get("code") or {}
    return dict(sorted(found.items()))


def _digest_of(recipe: JsonObject) -> str:
    """Digest of a recipe without its code, which is listed by itself."""
    return digest(line({name: recipe[name] for name in sorted(recipe) if name != "code"}))


def _append(store: Store, kind: Kind, content: JsonObject, previous: str) -> None:
    path = store.root / NAME
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; expected a file of its own")
    data = read_or_empty(path)
    if not data.endswith(b"\n") and data:  # a kill cut the last line short
        with records.writing(path):
            write_atomically(path, data[: data.rfind(b"\n") + 1])
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    version = {"flaxformer": flaxformer.__version__}
    records.append_line(path, {"kind": kind, "time": time, **version, **content, "previous": previous})
