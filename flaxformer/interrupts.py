"""Interruption of a command by a signal: Ctrl-C, a lost terminal, and those that clusters send."""

import signal
import threading
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
"""Signals that ask a process to end; SIGXCPU says that its CPU time is up."""
interrupted = threading.Event()
"""Set by `interrupt`: Python drops an exception that is raised in a callback of its garbage collector."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: set `interrupted` and raise KeyboardInterrupt."""
    interrupted.set()
    raise KeyboardInterrupt


def heeded() -> list[signal.Signals]:
    """Return the signals that this process does not ignore; `nohup` makes it ignore SIGHUP, and a shell's & SIGINT."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def interrupt_on_signals() -> None:
    """Let every signal that is not ignored interrupt the process."""
    interrupted.clear()
    for number in heeded():
        signal.signal(number, interrupt)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has asked to stop."""
    if interrupted.is_set():
        raise KeyboardInterrupt
