"""Progress of a study, from its folder alone: trials by state, the processes that train them, and the time left."""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import polars as pl

from flaxformer.store import columns
from flaxformer.store.leases import Lease, expiry, owner_is_gone, read_leases
from flaxformer.store.places import RUNGS
from flaxformer.store.store import STATUSES, Store

STATES = (*STATUSES, "running", "missing")
"""Status of a declared trial; "running" where it has no result and a living owner holds it."""


class Counts(TypedDict):
    """Numbers of trials: all, and those in each of `STATES`."""

    declared: int
    done: int
    diverged: int
    stopped: int
    failed: int
    running: int
    missing: int


class GroupStatus(Counts):
    """Trials of one compiled program."""

    group: str
    seconds_since_last_row: float | None


class LeaseStatus(TypedDict):
    """A process that trains a group, or that did; `trials` is None where it holds all of the group.

    `state` is "gone" for a process of this machine that has ended, "silent" for one that gave no sign of life for so
    long that others take over, by this machine's clock, and else "alive".
    """

    group: str
    host: str
    pid: int | None
    state: str
    seconds_held: float | None
    seconds_silent: float
    trials: int | None


class StudyStatus(Counts):
    """Progress of a study."""

    study: str
    folder: str
    groups: list[GroupStatus]
    leases: list[LeaseStatus]
    trials: dict[str, list[str]]
    """Names of the trials that are failed, running and missing."""
    damaged: dict[str, str]
    tokens_per_second: float | None
    """Estimate over all living processes, from the finished runs; None without a finished run or a living process."""
    seconds_left: float | None
    """Estimate of the time to the end, from the same; 0 when no trial is left."""
    rungs: dict[str, "StudyStatus"]
    """Progress of each rung of a halving that was begun, by its step."""


def status(store: Store) -> StudyStatus:
    """Read the progress of a study; its file is neither needed nor read.

    Raises:
      UserError: the folder holds no study.
    """
    declaration, now = store.declaration, time.time()
    rows = columns.read(store, "group", "seconds", "tokens_per_second", "group_size", "device")
    results = {name: (status, group) for name, status, group in rows.select("trial", "status", "group").iter_rows()}
    leases = read_leases(store.leases)
    alive = [lease for lease in leases if _state(lease, now) == "alive"]
    running = {trial for lease in alive for trial in lease["trials"] or ()}
    whole = {lease["group"] for lease in alive if lease["trials"] is None}
    trials: dict[str, list[str]] = {state: [] for state in STATES}
    counts: dict[str, Counter[str]] = {}
    written = store.written()
    for trial in declaration.trials:
        name, (ended, row_group) = trial.trial, results.get(trial.trial, ("", ""))
        group = trial.group or row_group
        is_held = name in running or group in whole
        state = ended if ended and not (ended == "failed" and is_held) else "running" if is_held else "missing"
        trials[state].append(name)
        counts.setdefault(group, Counter())[state] += 1
    owners = {(lease.get("host"), lease.get("pid")) for lease in alive}
    tokens_per_second, seconds_left = _pace(rows, counts, len(owners))
    return {
        **_counts(Counter({state: len(names) for state, names in trials.items()})),
        "study": declaration.name,
        "folder": str(store.root),
        "groups": [
            {
                **_counts(states),
                "group": group,
                "seconds_since_last_row": round(now - written[group], 1) if group in written else None,
            }
            for group, states in counts.items()
        ],
        "leases": [_lease(lease, now) for lease in leases],
        "trials": {state: trials[state] for state in ("failed", "running", "missing")},
        "damaged": store.corrupt_files,
        "tokens_per_second": tokens_per_second,
        "seconds_left": seconds_left,
        "rungs": {path.name: status(Store(path)) for path in _rungs(store)},
    }


def _counts(states: Counter[str]) -> Counts:
    return {
        "declared": states.total(),
        "done": states["done"],
        "diverged": states["diverged"],
        "stopped": states["stopped"],
        "failed": states["failed"],
        "running": states["running"],
        "missing": states["missing"],
    }


def _pace(rows: pl.DataFrame, counts: Mapping[str, Counter[str]], processes: int) -> tuple[float | None, float | None]:
    """Estimate tokens per second and seconds left, as if each process used the devices that finished runs name.

    A group without a finished run is taken to cost the mean of the others per run.
    """
    left = {group: states["running"] + states["missing"] for group, states in counts.items()}
    timed = rows.filter((pl.col("seconds") != 0) & (pl.col("tokens_per_second") != 0))
    if not sum(left.values()):
        return None, 0.0
    if not timed.height or not processes:
        return None, None
    workers = processes * timed["device"].n_unique()
    cost = pl.col("seconds") / pl.col("group_size")
    costs: dict[str, float] = dict(timed.group_by("group").agg(cost.mean()).iter_rows())
    mean = timed.select(cost.mean()).item()
    seconds = sum(n * costs.get(group, mean) for group, n in left.items())
    return workers * timed.select(pl.col("tokens_per_second").mean()).item(), seconds / workers


def _rungs(store: Store) -> list[Path]:
    """The folders of a halving's rungs, each a study's, in the order in which they are trained."""
    folders = (store.root / RUNGS).glob("[0-9]*")
    return sorted((path for path in folders if (path / "study.json").exists()), key=lambda path: int(path.name))


def _state(lease: Lease, now: float) -> str:
    silent = now - lease["mtime"] / 1e9
    return "gone" if owner_is_gone(lease) else "silent" if silent > expiry(lease) else "alive"


def _lease(lease: Lease, now: float) -> LeaseStatus:
    started, trials = lease.get("started"), lease["trials"]
    return {
        "group": lease["group"],
        "host": str(lease.get("host", "?")),
        "pid": lease.get("pid"),
        "state": _state(lease, now),
        "seconds_held": round(now - started, 1) if isinstance(started, int | float) else None,
        "seconds_silent": round(now - lease["mtime"] / 1e9, 1),
        "trials": None if trials is None else len(trials),
    }
