"""Interruption of a command by a signal: Ctrl-C, a lost terminal, and those that clusters send.

A handler raises KeyboardInterrupt wherever the main thread is. Python drops an exception that is raised in a callback
of its garbage collector (JAX has one), of a weak reference, or in `__del__`. Such a drop is reported to
`sys.unraisablehook`, which here sends the signal again, until it arrives at a place where it counts. A library may also
turn the exception into another one; `interrupted` stays set, and the command ends as interrupted all the same.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
"""Signals that ask a process to end; SIGXCPU says that its CPU time is up."""
SECONDS_TO_REPEAT = 0.05
"""Time after which a dropped interruption is repeated."""
_HOOKS: list[object] = []
"""Hooks that repeat interruptions."""
interrupted = threading.Event()
"""Set by `interrupt`, also where the exception that it raises is dropped."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: set `interrupted` and raise KeyboardInterrupt."""
    interrupted.set()
    raise KeyboardInterrupt


def heeded() -> list[signal.Signals]:
    """Return the signals that this process does not ignore; `nohup` makes it ignore SIGHUP, and a shell's & SIGINT."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def interrupt_on_signals() -> None:
    """Let every signal that is not ignored interrupt the process, wherever it arrives."""
    interrupted.clear()
    for number in heeded():
        signal.signal(number, interrupt)
    if sys.unraisablehook not in _HOOKS:
        sys.unraisablehook = _repeating(sys.unraisablehook)


def exit_on_signals(code: int, message: str = "") -> None:
    """Let signals end the process at once: while modules are imported, and at the end of the interpreter.

    Extension modules print the traceback of an exception that is raised while they are imported.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, message.encode())
        os._exit(code)

    for number in heeded():
        signal.signal(number, handle)


def ignore_signals() -> None:
    """Ignore every signal of `SIGNALS`: of other handlers, Python restores the default, which would end the process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has asked to stop."""
    if interrupted.is_set():
        raise KeyboardInterrupt


def _repeating(former: Callable[["sys.UnraisableHookArgs"], object]) -> Callable[["sys.UnraisableHookArgs"], object]:
    """Return a hook for dropped exceptions that repeats an interruption, and passes any other exception on."""

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if interrupted.is_set() and issubclass(dropped.exc_type, KeyboardInterrupt):
            timer = threading.Timer(SECONDS_TO_REPEAT, _repeat)
            timer.daemon = True
            timer.start()
        else:
            former(dropped)

    _HOOKS.append(hook)
    return hook


def _repeat() -> None:
    """Send a signal that interrupts to the main thread; none if all handlers are others, as while a run is saved."""
    number = next((number for number in SIGNALS if signal.getsignal(number) is interrupt), None)
    main = threading.main_thread().ident
    if number is not None and main is not None and interrupted.is_set():
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(main, number)
