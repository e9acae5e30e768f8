"""Interruption of a command by a signal."""

import threading
from types import FrameType

interrupted = threading.Event()
"""Set by `interrupt`, because Python drops an exception that is raised in a callback of its garbage collector."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: set `interrupted` and raise KeyboardInterrupt."""
    interrupted.set()
    raise KeyboardInterrupt


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has asked to stop."""
    if interrupted.is_set():
        raise KeyboardInterrupt
