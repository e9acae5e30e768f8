"""Notes on the data of a task, and the source and licence that the user states in a file beside them."""

from pathlib import Path

from flaxformer.core.canonical import canonical
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import flatten
from flaxformer.tasks.base import Task

ABOUT = ".about.md"
"""End of the name of the file that describes the data of another file or folder, whose path is the rest."""
LONGEST = 1000
"""Largest number of characters of such a file."""


def data_notes(task: Task) -> list[str]:
    """Return the notes of a task, and the texts of the files PATH.about.md of its paths.

    Raises:
      UserError: such a file is not UTF-8, or too long.
    """
    values = dict.fromkeys(value for value in flatten(canonical(task)).values() if isinstance(value, str) and value)
    return [*task.notes(), *(text for value in values if (text := _about(value)))]


def _about(path: str) -> str:
    """Return the description of a path in one line; empty without one."""
    file = Path(path.rstrip("/") + ABOUT).expanduser()
    try:
        if not file.is_file():
            return ""
        text = " ".join(file.read_text(encoding="utf-8").split())
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8; expected a short text on the source and licence of the data") from None
    except (OSError, ValueError):  # a value that is no path
        return ""
    if len(text) > LONGEST:
        raise UserError(f"{file} has {len(text):,} characters; expected at most {LONGEST:,}")
    return f"About {Path(path).name}: {text}" if text else ""
