"""A command's work in a process of its own, which may die without ending the command."""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from flaxformer.system.errors import UserError
from flaxformer.system.interrupts import interrupt_on_signals
from flaxformer.system.startup import set_up

_STACK_LINE = re.compile(r"^\s*(@|\*\*\*|#\d|0x|\[symbolize|PC:|Current thread|Thread |File |Extension modules)")
"""Beginning of a line of a stack in the last output of a program that aborts."""


class ChildDiedError(RuntimeError):
    """The process ended by a signal, or without a result."""


def call_in_process(function: Callable[..., int], *arguments: object) -> int:
    """Return `function(*arguments)` as computed by a new process, which prints to the same terminal.

    Args:
      function: a function of a module, which a new process can import; its arguments can be pickled.

    Raises:
      UserError: the function raised it.
      ChildDiedError: the process died; the message has the last line that it wrote to the standard error.
    """
    context = multiprocessing.get_context("spawn")
    received, sent = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors.txt"
        keeps_programs = bool(jax.config.values["jax_compilation_cache_dir"])
        process = context.Process(target=_call, args=(sent, errors, keeps_programs, function, arguments))
        sys.stdout.flush()
        process.start()
        sent.close()
        try:
            with contextlib.suppress(EOFError):
                result, mistake = received.recv()
                process.join()
                _print_errors(errors)
                if mistake is not None:
                    raise UserError(mistake)
                return int(result)
            process.join()
        except BaseException:
            process.kill()  # a compiler does not let it handle another signal
            process.join()
            raise
        raise ChildDiedError(f"{_how_it_ended(process.exitcode)}: {_last_line(errors)}")


def _call(
    sent: Connection, errors: Path, keeps_programs: bool, function: Callable[..., int], arguments: tuple[object, ...]
) -> None:
    """Call the function in the new process, and send its result or its UserError."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    interrupt_on_signals()
    set_up(keeps_programs)
    try:
        sent.send((function(*arguments), None))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except UserError as error:
        sent.send((None, str(error)))
    except Exception:
        traceback.print_exc()
        sent.send((1, None))


def _how_it_ended(code: int | None) -> str:
    """Return the end of a process in words."""
    return f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _last_line(errors: Path) -> str:
    """Return the last line of the output that is not of a stack; the first line of a fatal message, if there is one."""
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} |.*Check failed", line)]
    plain = [line for line in lines if not _STACK_LINE.match(line)]
    return (fatal[:1] or plain[-1:] or ["it wrote nothing"])[0]


def _print_errors(errors: Path) -> None:
    """Print what a process that ended by itself wrote to the standard error."""
    if errors.exists():
        sys.stderr.write(errors.read_text(errors="replace"))
