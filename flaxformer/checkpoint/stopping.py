"""Stop signals as a flag, so that a run finishes its chunk of steps, saves, and returns."""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from flaxformer.system.interrupts import handled_signals, interrupt, raise_if_interrupted

Handler = Callable[[int, FrameType | None], None]


@dataclasses.dataclass
class Stop:
    """Request to stop, by a signal."""

    by: signal.Signals | None = None
    has_handlers: bool = False

    @property
    def is_requested(self) -> bool:
        """True from the first signal on."""
        return self.by is not None

    def raise_on_signals(self, applies: bool = True) -> contextlib.ExitStack:
        """Let a signal raise KeyboardInterrupt until the returned stack is closed, where nothing is to be saved.

        Nothing changes in a `Stop` that `stop_on_signals` has not made, or with `applies=False`.

        Raises:
          KeyboardInterrupt: a signal came before.
        """
        handlers = contextlib.ExitStack()
        if applies and self.has_handlers:
            if self.is_requested:
                raise KeyboardInterrupt
            handlers.enter_context(handling_signals(interrupt))
        return handlers


@contextlib.contextmanager
def handling_signals(handler: Handler) -> Iterator[None]:
    """Handle the signals of `interrupts.SIGNALS` inside the `with` block; restore the handlers afterwards."""
    former = {number: signal.signal(number, handler) for number in handled_signals()}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Let the signals of `interrupts.SIGNALS` set a flag inside the `with` block; restore the handlers afterwards.

    Signals that the process ignores, as under nohup, stay ignored.

    The first signal only sets the flag: an exception in the middle of a step would leave the device busy. A second
    signal ends the process at once with exit code 128 + its number (130 for Ctrl-C, 143 for SIGTERM), without flushing
    files or waiting for a save; at most the save in progress is lost.

    >>> with stop_on_signals() as stop:
    ...     while step < steps and not stop.is_requested:
    ...         step = train_some(step)

    Raises:
      KeyboardInterrupt: a signal came before.
      ValueError: called from another thread than the main one, to which Python delivers signals.
    """
    raise_if_interrupted()
    stop = Stop(has_handlers=True)

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_requested:
            os._exit(128 + number)
        stop.by = signal.Signals(number)

    with handling_signals(handle):
        yield stop
