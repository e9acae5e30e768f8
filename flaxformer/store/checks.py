"""Checks of what a study's folder holds: names of files, characters of texts, and results that should be equal."""

import re
from collections.abc import Iterable
from pathlib import Path

from flaxformer.store.rows import Row
from flaxformer.system.digests import read_again
from flaxformer.system.errors import UserError

CONTROL = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|d[89a-f][0-9a-f]{2})|\x7f|\xc2[\x80-\x9f]",
    re.IGNORECASE,
)
"""Characters in JSON that a terminal would obey, or that are not text."""


def check_file_name(group: str) -> str:
    """Return a group's name, which is used as a file name.

    Raises:
      UserError: the file would lie outside the folder.
    """
    if not group or group.startswith(".") or set(group) & set("/\\\0\n") or len(group.encode()) > 200:
        raise UserError(f"group is named {group!r}; expected a plain file name")
    return group


@read_again
def check_characters(path: Path) -> None:
    """Raise UserError if a file of JSON holds a text that a terminal would obey, or that is not valid."""
    if match := CONTROL.search(path.read_bytes()):
        shown = match[0].decode(errors="replace").encode("unicode_escape").decode()
        raise UserError(f"{path} holds the control character {shown}; expected printable text, as 'run' writes it")


def difference(old: Row | None, new: Row) -> str:
    """Return how two results of a trial differ that should be the same bit for bit; "" if they do not.

    Runs are the same only if as many were trained together, on the same kind of device.
    """
    if old is None or {old.status, new.status} & {"failed", "stopped"} or old.fingerprint != new.fingerprint:
        return ""
    if (old.group_size, old.chunk_steps, old.device) != (new.group_size, new.chunk_steps, new.device):
        return ""
    names = [name for name, value in old.metrics.items() if repr(new.metrics.get(name)) != repr(value)]
    return ", ".join(f"{name} {old.metrics[name]} and {new.metrics.get(name)}" for name in names)


def is_finished(row: Row | None) -> bool:
    """True if a trial has a result; a failed run has none."""
    return row is not None and row.status != "failed"


def by_trial(rows: Iterable[Row], disagreements: dict[str, str]) -> dict[str, Row]:
    """Return the last row of every trial; differing results of one are added to `disagreements`."""
    last: dict[str, Row] = {}
    for row in rows:
        former = last.get(row.trial)
        if what := difference(former, row):
            disagreements.setdefault(row.trial, what)
        if not (row.status == "failed" and is_finished(former)):
            last[row.trial] = row
    return last
