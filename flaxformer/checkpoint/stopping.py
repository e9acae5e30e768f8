"""Signals as a flag: a run that is asked to stop finishes its chunk, saves, and ends by itself."""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


@dataclasses.dataclass
class Stop:
    """Request of a signal that the process stop."""

    by: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """True from the first signal on."""
        return self.by is not None


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Within, Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 set a flag; the former handlers are back afterwards.

    The first signal does nothing else, since an exception in the middle of a step would leave the device at work.
    A second one ends the process at once, with 128 + its number (130 for Ctrl-C, 143 for SIGTERM): no file is flushed
    and no save waited for, which loses at most the save in progress.

    >>> with stopping() as stop:
    ...     while step < steps and not stop.asked:
    ...         step = train_some(step)

    Raises:
      ValueError: not called from the main thread, where alone Python delivers signals.
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            os._exit(128 + number)
        stop.by = signal.Signals(number)

    former = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
