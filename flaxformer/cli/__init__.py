"""The command `flaxformer`: see `flaxformer --help`."""

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Sequence

from flaxformer.system.interrupts import (
    exit_on_signals,
    ignore_signals,
    interrupt_on_signals,
    interrupted,
    watch_signals,
)

INTERRUPTED = 130
"""Exit code of an interrupted command."""
STOPPED = "Stopped. What is finished or saved is kept; run the same command again to continue."


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns one of `parsing.EXIT_CODES`.

    From the shell (no arguments given here), compiled programs are cached; elsewhere JAX stays as its user set it.
    Signals are handled before the imports, so that an interruption at any moment ends the command with its exit code.
    """
    try:
        if arguments is None:
            watch_signals(INTERRUPTED, f"{STOPPED}\n")
            exit_on_signals(INTERRUPTED, f"{STOPPED}\n")  # until the modules of the command are imported
        else:
            interrupt_on_signals()
        command = importlib.import_module("flaxformer.cli.command")
        code: int = command.run(list(sys.argv[1:] if arguments is None else arguments), is_shell=arguments is None)
        is_interrupted = interrupted.is_set()  # also where a library has dropped the exception
    except KeyboardInterrupt:
        is_interrupted = True
    except BaseException:
        if not interrupted.is_set():
            raise
        is_interrupted = True  # a library has turned the exception into another one
    finally:
        if arguments is None:
            exit_on_signals(INTERRUPTED)
            atexit.register(ignore_signals)  # the interpreter ends, with the exit code of the command
        interrupted.clear()  # a process may run another command, or a study, after one that was interrupted
    if is_interrupted:
        print(STOPPED, file=sys.stderr, flush=True)
        code = INTERRUPTED
    if arguments is None and code == INTERRUPTED and _has_running_threads():
        sys.stdout.flush()
        os._exit(code)
    return code


def _has_running_threads() -> bool:
    """True if the interpreter would wait for a thread, such as one that compiles."""
    return any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
