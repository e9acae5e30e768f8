"""Head of an append-only log: a file beside it with the number of its lines and the digest of the last one.

    declarations.jsonl, ledger.jsonl   the log, whose lines hold the digest of the line before
    declarations.head, ledger.head     {"lines": 12, "last": "…"}

The lines show a change of a line that others follow; the head shows that lines at the end were changed or removed. A
line is on the disk before the head counts it: after a crash between the two, the log is one line ahead of its head,
which is not a fault.
"""

from collections.abc import Sequence
from pathlib import Path

from flaxformer.store import records
from flaxformer.system.digests import DamagedError, JsonObject, digest, read_document, read_or_empty
from flaxformer.system.files import write_atomically
from flaxformer.system.wording import count_of

HeadContent = JsonObject | str | None
"""Content of a head; None without one, and a sentence on what is wrong with a damaged one."""


def head_of(path: Path) -> Path:
    """Return the path of the head of a log."""
    return path.with_suffix(".head")


def line_digests(path: Path) -> list[str]:
    """Return the digest of each whole line of a log."""
    return [digest(text, 16) for text in read_or_empty(path).split(b"\n")[:-1]]


def read(path: Path) -> HeadContent:
    """Return the head of a log; read it before the log, since another process may add a line meanwhile."""
    try:
        head = read_document(head_of(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedError as error:
        return str(error)
    is_head = isinstance(head.get("lines"), int) and isinstance(head.get("last"), str) and head["lines"] > 0
    return head if is_head else "it is not a head"


def faults(path: Path, head: HeadContent, digests: Sequence[str], is_used: bool) -> list[str]:
    """Return what a head says about a log: lines that it counts and that are not there, or a missing file.

    Args:
      path: the log.
      head: its head, read before the log.
      digests: digest of each line of the log.
      is_used: True if there is something that would not be there without a log and its head.
    """
    if isinstance(head, str):
        return [f"{head_of(path).name} is damaged ({head})"]
    if head is None:
        missing = path if not digests else head_of(path)
        return [f"{missing.name} is missing"] if is_used else []
    n = head["lines"]
    if len(digests) < n:
        gone = n - len(digests)
        return [f"{gone} of {count_of(n, 'line')} of {path.name} {'is' if gone == 1 else 'are'} missing"]
    return [] if digests[n - 1] == head["last"] else [f"line {n} of {path.name} is not the one that was written"]


def write(path: Path, digests: Sequence[str]) -> None:
    """Count the lines of a log in its head.

    Raises:
      UserError: it cannot be written.
    """
    head = {"lines": len(digests), "last": digests[-1]}
    if read(path) != head:
        records.write_document(head_of(path), head)


def remove_torn_line(path: Path) -> None:
    """Remove a last line without its end, which a kill cut short and which nothing has read; else it would be damage.

    Raises:
      UserError: the log cannot be written.
    """
    data = read_or_empty(path)
    if data and not data.endswith(b"\n"):
        with records.writing(path):
            write_atomically(path, data[: data.rfind(b"\n") + 1])
