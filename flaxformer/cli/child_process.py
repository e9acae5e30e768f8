"""A command's work in a process of its own, which may die without ending the command."""

import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self, TypeVar, cast

import jax

from flaxformer.system.errors import UserError
from flaxformer.system.interrupts import interrupt_on_signals
from flaxformer.system.startup import set_up

T = TypeVar("T")
_STACK_LINE = re.compile(r"^\s*(@|\*\*\*|#\d|0x|\[symbolize|PC:|Current thread|Thread |File |Extension modules)")
"""Beginning of a line of a stack in the last output of a program that aborts."""


class ChildDiedError(RuntimeError):
    """The process ended by a signal, or without a result."""


class ChildFailedError(RuntimeError):
    """The function raised an exception that is not a mistake of the user."""


class ChildProcess:
    """A process that calls functions for this one, one at a time; after it died, the next call starts another.

    It is a context, which ends the process.
    """

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._errors = Path(self._folder.name) / "errors.txt"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._folder.cleanup()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Return `function(*arguments)` as the process computes it.

        Args:
          function: a function of a module, which a new process can import; arguments and result can be pickled.

        Raises:
          UserError: the function raised it.
          ChildFailedError: the function raised another exception, whose traceback is printed.
          ChildDiedError: the process died; the message has the last line that it wrote to the standard error.
        """
        try:
            if self._process is None:
                self._start()
            self._pipe.send((function, arguments))
            result, mistake = self._pipe.recv()
        except (EOFError, OSError):
            code = self._end(wait=True)
            raise ChildDiedError(f"{_how_it_ended(code)}: {_last_line(self._errors)}") from None
        except BaseException:
            self._end()
            raise
        self._print_errors()
        if mistake is not None:
            raise mistake
        return cast(T, result)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._errors.unlink(missing_ok=True)
        self._printed = 0
        keeps_programs = bool(jax.config.values["jax_compilation_cache_dir"])
        self._process = context.Process(target=_serve, args=(theirs, self._errors, keeps_programs))
        self._process.start()
        theirs.close()

    def _end(self, wait: bool = False) -> int | None:
        """End the process, or wait for its end, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._pipe.close()
        if not wait:
            process.kill()  # a compiler does not let it handle another signal
        process.join()
        return process.exitcode

    def _print_errors(self) -> None:
        """Print what the process wrote to the standard error since the last call."""
        text = self._errors.read_text(errors="replace")
        sys.stderr.write(text[self._printed :])
        self._printed = len(text)


def _serve(pipe: Connection, errors: Path, keeps_programs: bool) -> None:
    """Call functions in the new process, and send the result or the exception of each, until the pipe is closed."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    interrupt_on_signals()
    set_up(keeps_programs)
    try:
        while True:
            function, arguments = pipe.recv()
            pipe.send(_outcome(function, arguments))
    except EOFError:
        return
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _outcome(function: Callable[..., object], arguments: tuple[object, ...]) -> tuple[object, Exception | None]:
    """Return the result of a call and None, or None and its exception as this process can send it."""
    try:
        return function(*arguments), None
    except UserError as error:
        return None, UserError(str(error))
    except Exception as error:
        traceback.print_exc()
        return None, ChildFailedError(f"{type(error).__name__}: {error}")


def _how_it_ended(code: int | None) -> str:
    """Return the end of a process in words."""
    return f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _last_line(errors: Path) -> str:
    """Return the last line of the output that is not of a stack; the first line of a fatal message, if there is one."""
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} |.*Check failed", line)]
    plain = [line for line in lines if not _STACK_LINE.match(line)]
    return (fatal[:1] or plain[-1:] or ["it wrote nothing"])[0]
