"""Exceptions that end a command with one message instead of a traceback."""

import os
import sys
import unicodedata
from collections.abc import Sequence

from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")
"""Texts of JAX's errors where memory ran out; on a CPU, it calls them internal errors."""


def message(error: BaseException) -> str | None:
    """Return the message for an exception that a user can correct; None for one that is a fault of the program."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, DamagedError):
        return f"a file is damaged: {error}"
    if (frames := sys.modules.get("flaxformer.system.user_code.frames")) and frames.place_of(error):
        return str(frames.describe(error))
    if isinstance(error, SystemExit):
        return None
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fspath(error.filename)} cannot be used: {error.strerror}"
    if isinstance(error, OSError):
        return f"the operating system reports: {error.strerror or error}"
    if isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
        return f"out of memory ({type(error).__name__}: {error}); a smaller model, batch or length needs less"
    return None


def check_words(words: Sequence[str]) -> None:
    """Check the words of a command line.

    Raises:
      UserError: one is empty, such as an unset variable of a shell; or holds a control character, which neither names a
        file nor belongs to a text to continue.
    """
    for number, word in enumerate(words, start=1):
        if not word:
            raise UserError(f"word {number} of the command is empty; expected a value")
        control = next((c for c in word if unicodedata.category(c) == "Cc" and c not in "\n\t\r"), None)
        if control is not None:
            raise UserError(f"{word!r} holds the control character {control!r}; expected printable text")


def end_of_pipe() -> None:
    """Let the interpreter end in silence after the reader of its output is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
