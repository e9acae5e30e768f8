"""Progress of a study in words and as a table, for `status` in a terminal and in a browser."""

from collections.abc import Mapping
from typing import cast

from flaxformer.report.table import Table
from flaxformer.store.status import STATES, Counts, LeaseStatus, StudyStatus
from flaxformer.system.wording import count_of, duration

ALWAYS_SHOWN = ("done", "running", "failed", "missing")


def is_over(progress: StudyStatus) -> bool:
    """True if no run is under way or missing."""
    return progress["running"] + progress["missing"] == 0


def summary(progress: StudyStatus) -> str:
    """Progress in a sentence: runs that have ended, throughput, time left."""
    ended = progress["declared"] - progress["running"] - progress["missing"]
    clauses = [f"{ended} of {count_of(progress['declared'], 'run')} finished"]
    clauses += [
        f"{_count(progress, name)} {name}"
        for name in ("failed", "diverged", "stopped", "running")
        if _count(progress, name)
    ]
    if progress["tokens_per_second"] is not None:
        clauses.append(f"about {progress['tokens_per_second']:,.0f} tokens/s")
    if progress["seconds_left"]:
        clauses.append(f"about {duration(progress['seconds_left'])} left")
    if not is_over(progress) and not any(lease["state"] == "alive" for lease in progress["leases"]):
        clauses.append("no process is training")
    return ", ".join(clauses)


def groups_table(progress: StudyStatus) -> Table:
    """Numbers of runs by program and state; states without a run are left out."""
    states = [name for name in STATES if name in ALWAYS_SHOWN or _count(progress, name)]
    rows = [
        [
            group["group"],
            *(str(_count(group, name)) for name in ("declared", *states)),
            _ago(group["seconds_since_last_row"]),
        ]
        for group in progress["groups"]
    ]
    if len(rows) != 1:
        rows.append(["all", *(str(_count(progress, name)) for name in ("declared", *states)), ""])
    return Table("", ["program", "runs", *states, "last result"], rows, 1)


def _count(counts: Counts, state: str) -> int:
    """Number of runs in a state."""
    return cast("Mapping[str, int]", counts)[state]


def lease_line(lease: LeaseStatus) -> str:
    """A process, what it trains, and its last sign of life."""
    runs = "all runs" if lease["trials"] is None else count_of(lease["trials"], "run")
    return (
        f"process {lease['pid']} on {lease['host']} ({lease['state']}) trains {runs} of {lease['group']}, "
        f"started {_ago(lease['seconds_held'])}, last sign of life {_ago(lease['seconds_silent'])}"
    )


def _ago(seconds: float | None) -> str:
    """An age in its largest unit."""
    if seconds is None:
        return "–"
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    return next((f"{seconds / size:.1f} {unit} ago" for size, unit in units if seconds >= size), f"{seconds:.0f} s ago")
