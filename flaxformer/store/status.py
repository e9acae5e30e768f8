"""Progress of a study, from its folder alone: trials by status, and the processes that hold them."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from flaxformer.store.leases import Lease, expiry, owner_is_gone, read_leases
from flaxformer.store.store import RUNGS, STATUSES, Store

STATES = (*STATUSES, "running", "missing")
"""Status of a declared trial; "running" where it has no result and a living owner holds it."""


def status(store: Store) -> dict[str, Any]:
    """A study's state as plain data; the study's file is neither needed nor read.

    A lease's owner is "gone" where it was a process of this machine that has ended, "silent" where it gave no sign of
    life for as long as makes others take over, by this machine's clock, and else "alive". "rungs" has the same of every
    rung of a halving that was begun, by its step.

    Raises:
      UserError: the folder holds no study.
    """
    declaration, rows, now = store.declaration, store.rows(), time.time()
    leases = [_lease(lease, now) for lease in read_leases(store.leases)]
    alive = [lease for lease in leases if lease["state"] == "alive"]
    running = {trial for lease in alive for trial in lease["trials"] or ()}
    whole = {lease["group"] for lease in alive if lease["trials"] is None}
    trials: dict[str, list[str]] = {state: [] for state in STATES}
    counts: dict[str, Counter[str]] = {}
    written = store.written()
    for trial in declaration["trials"]:
        name, row = trial["trial"], rows.get(trial["trial"])
        group = trial.get("group") or (row["group"] if row else "")
        at_work = name in running or group in whole
        state = row["status"] if row and not (row["status"] == "failed" and at_work) else "running"
        state = "missing" if not row and not at_work else state
        trials[state].append(name)
        counts.setdefault(group, Counter())[state] += 1
    return {
        "study": declaration.get("name", ""),
        "folder": str(store.root),
        "declared": len(declaration["trials"]),
        **{state: len(trials[state]) for state in STATES},
        "groups": [
            {"group": group, "declared": own.total(), **{state: own[state] for state in STATES}}
            | {"seconds_since_last_row": round(now - written[group], 1) if group in written else None}
            for group, own in counts.items()
        ],
        "leases": [lease | {"trials": None if lease["trials"] is None else len(lease["trials"])} for lease in leases],
        "trials": {state: trials[state] for state in ("failed", "running", "missing")},
        "damaged": store.corrupt_files,
        "rungs": {path.name: status(Store(path)) for path in _rungs(store)},
    }


def _rungs(store: Store) -> list[Path]:
    """The folders of a halving's rungs, each a study's, in the order in which they are trained."""
    found = (store.root / RUNGS).glob("[0-9]*")
    return sorted((path for path in found if (path / "study.json").exists()), key=lambda path: int(path.name))


def _lease(lease: Lease, now: float) -> dict[str, Any]:
    silent, started = now - lease["mtime"] / 1e9, lease.get("started")
    gone = owner_is_gone(lease)
    return {
        "group": lease["group"],
        "host": str(lease.get("host", "?")),
        "pid": lease.get("pid"),
        "state": "gone" if gone else "silent" if silent > expiry(lease) else "alive",
        "seconds_held": round(now - started, 1) if isinstance(started, int | float) else None,
        "seconds_silent": round(silent, 1),
        "trials": lease["trials"],
    }
