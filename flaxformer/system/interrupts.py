"""Interruption of a command by a signal: Ctrl-C, a lost terminal, and those that clusters send.

A handler raises KeyboardInterrupt wherever the main thread is. Python drops an exception that is raised in a callback
of its garbage collector (JAX has one), of a weak reference, or in `__del__`. Such a drop is reported to
`sys.unraisablehook`, which here sends the signal again, until it arrives at a place where it counts. A library may also
turn the exception into another one; `interrupted` stays set, and the command still ends as interrupted.

Python calls no handler while the main thread is in native code, such as the compiler of XLA. `watch_signals` starts a
thread that sees each signal at once, and ends the process where nothing would be lost.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
"""Signals that ask a process to end; SIGXCPU says that its CPU time is up."""
SECONDS_TO_REPEAT = 0.05
"""Time after which a dropped interruption is repeated."""
SECONDS_TO_HANDLE = 0.5
"""Time after which a signal that Python has not handled ends the process, if nothing is to be saved."""
SECONDS_BETWEEN_SIGNALS = 0.3
"""Time from which on a further signal is a second request; some programs send each signal twice."""
WAITING = "Stopping: waiting for the running steps or a save. A second Ctrl-C ends at once; what is saved is kept.\n"
_REPEATED: list[int] = []
"""Signals that `_repeat` has sent and the thread of `watch_signals` has not seen."""
_HOOKS: list[object] = []
"""Hooks that repeat interruptions."""
interrupted = threading.Event()
"""Set by `interrupt`, also where the exception that it raises is dropped."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: set `interrupted` and raise KeyboardInterrupt."""
    interrupted.set()
    raise KeyboardInterrupt


_ENDING: list[object] = [interrupt]
"""Handlers that end the command with nothing to save."""


def handled_signals() -> list[signal.Signals]:
    """Return the signals that this process does not ignore; `nohup` makes it ignore SIGHUP, and a shell's & SIGINT."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def interrupt_on_signals() -> None:
    """Let every signal that is not ignored interrupt the process, wherever it arrives."""
    interrupted.clear()
    for number in handled_signals():
        signal.signal(number, interrupt)
    if sys.unraisablehook not in _HOOKS:
        sys.unraisablehook = _repeating(sys.unraisablehook)


def exit_on_signals(code: int, message: str = "") -> None:
    """Let signals end the process at once: while modules are imported, and at the end of the interpreter.

    Extension modules print the traceback of an exception that is raised while they are imported.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _write(message)
        os._exit(code)

    _ENDING.append(handle)
    for number in handled_signals():
        signal.signal(number, handle)


def watch_signals(code: int, message: str) -> None:
    """Start a thread that ends the process where Python calls no handler: in native code, and at a second signal.

    Where a handler of this module has nothing to save and is not called within `SECONDS_TO_HANDLE`, the process ends
    with `code`, after `message`. Elsewhere the thread says that the process waits. A second signal ends the process
    with 128 + its number.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(read, code, message), daemon=True, name="signals").start()


def _watch(read: int, code: int, message: str) -> None:
    """Body of the thread of `watch_signals`; `read` gives a byte per signal, its number."""
    while (number := _read_signal(read)) is None:
        pass
    first, is_waiting = time.monotonic(), False
    while True:
        left = None if is_waiting else max(0.0, first + SECONDS_TO_HANDLE - time.monotonic())
        if select.select([read], [], [], left)[0]:
            second = _read_signal(read)
            if second is not None and time.monotonic() - first > SECONDS_BETWEEN_SIGNALS:
                os._exit(128 + second)
        elif signal.getsignal(number) in _ENDING and not interrupted.is_set():
            _write(message)
            os._exit(code)
        else:
            is_waiting = True
            _write(WAITING)


def _read_signal(read: int) -> int | None:
    """Wait for a signal, and return its number; None if it asks for nothing, or `_repeat` has sent it."""
    number = os.read(read, 1)[0]
    if number in _REPEATED:
        _REPEATED.remove(number)
        return None
    return number if number in SIGNALS else None


def _write(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, message.encode())


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
            try:
                timer.start()
            except KeyboardInterrupt:  # on a busy machine, the timer may fire before `start` returns
                hook(dropped)
        else:
            former(dropped)

    _HOOKS.append(hook)
    return hook


def _repeat() -> None:
    """Send a signal that interrupts to the main thread; none if all handlers are others, as while a run is saved."""
    number = next((number for number in SIGNALS if signal.getsignal(number) is interrupt), None)
    main = threading.main_thread().ident
    if number is not None and main is not None and interrupted.is_set():
        _REPEATED.append(number)
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(main, number)
