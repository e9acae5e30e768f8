"""The command `flaxformer`: see `flaxformer --help`."""

import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Sequence

from rich.text import Text

import flaxformer
from flaxformer.cli.arguments.options import FAILED, INTERRUPTED, USER_ERROR
from flaxformer.cli.mistakes import check_words, end_of_pipe, message
from flaxformer.cli.parsing import parse, show_help
from flaxformer.cli.terminal import safe_console
from flaxformer.garbage import without_collections
from flaxformer.interrupts import interrupt_on_signals, interrupted

WITHOUT_JAX = ("new", "completion")
"""Commands that are ready before JAX would be imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns one of `parsing.EXIT_CODES`.

    From the shell (no arguments given here), compiled programs are cached; elsewhere JAX stays as its user set it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    console, errors = safe_console(), safe_console(is_error=True)
    try:
        check_words(words)
        if words in (["--help"], ["-h"], []):
            show_help(console if words else errors)
            return 0 if words else USER_ERROR
        if words == ["--version"]:
            console.print(versions(), highlight=False)
            return 0
        command = parse(words)
        interrupt_on_signals()
        if words[0] not in WITHOUT_JAX:
            with without_collections():
                startup = importlib.import_module("flaxformer.startup")
            startup.set_up(keep_programs=arguments is None)
        with without_collections():
            module = importlib.import_module(f"flaxformer.cli.{words[0]}")
        return module.main(command, console)
    except KeyboardInterrupt:
        errors.print("Stopped. What is finished or saved is kept; run the same command again to continue.")
        return INTERRUPTED
    except BrokenPipeError:
        end_of_pipe()
        return FAILED
    except (Exception, SystemExit) as error:
        text = message(error)
        if text is None:
            raise
        errors.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
        return USER_ERROR
    finally:
        interrupted.clear()  # a process may run another command, or a study, after one that was interrupted


def versions() -> str:
    """The versions that a bug report needs, found without importing JAX."""
    jax = importlib.metadata.version("jax")
    return f"flaxformer {flaxformer.__version__}, jax {jax}, python {platform.python_version()}"
