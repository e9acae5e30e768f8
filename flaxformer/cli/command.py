"""A command line from its words to its exit code, with one message for a mistake of the user."""

import gc
import importlib
import importlib.metadata
import platform
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

import flaxformer
from flaxformer.catalog import import_named
from flaxformer.cli.arguments.options import FAILED, USER_ERROR
from flaxformer.cli.mistakes import check_inputs, check_options, check_words, end_of_pipe, message
from flaxformer.cli.parsing import parse, show_help
from flaxformer.cli.remote_folders import local_folders
from flaxformer.cli.terminal import safe_console
from flaxformer.system.garbage import without_collections
from flaxformer.system.interrupts import interrupt_on_signals, raise_if_interrupted

WITHOUT_JAX = ("new", "catalog", "completion", "fit", "prepare", "report", "status")
"""Commands that are ready before JAX would be imported."""


def run(words: Sequence[str], is_shell: bool) -> int:
    """Run a command, and return its exit code.

    Args:
      words: the words after `flaxformer`.
      is_shell: True to cache compiled programs, and to let signals interrupt the command once it is imported.

    Raises:
      KeyboardInterrupt: a signal asked to stop.
    """
    console, errors = safe_console(), safe_console(is_error=True)
    try:
        return _run(words, is_shell, console, errors)
    except KeyboardInterrupt:
        raise
    except BrokenPipeError:
        end_of_pipe()
        return FAILED
    except BaseException as error:
        raise_if_interrupted()
        text = message(error)
        if text is None:
            raise
        errors.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
        return USER_ERROR


def _run(words: Sequence[str], is_shell: bool, console: Console, errors: Console) -> int:
    check_words(words)
    if list(words) in (["--help"], ["-h"], []):
        show_help(console if words else errors)
        return 0 if words else USER_ERROR
    if list(words) == ["--version"]:
        console.print(versions())
        return 0
    command = parse(words)
    check_inputs(words[0], command)
    check_options(words[0], command)
    if words[0] not in WITHOUT_JAX:
        with without_collections():
            startup = importlib.import_module("flaxformer.system.startup")
        startup.set_up(keep_programs=is_shell)
        import_named(words)  # so that an override may name a class of the catalog
    with without_collections():
        module = importlib.import_module(f"flaxformer.cli.{words[0]}")
    if is_shell:
        gc.freeze()  # what is imported stays: collections, and the end of the process, need not visit it
        interrupt_on_signals()  # until here, signals end the process at once
    with local_folders(words[0], command) as local_command:
        if not hasattr(command, "formulations"):
            return int(module.main(local_command, console))
        with importlib.import_module("flaxformer.nn.formulations").using(command.formulations):
            return int(module.main(local_command, console))


def versions() -> str:
    """The versions that a bug report needs, found without importing JAX."""
    jax = importlib.metadata.version("jax")
    return f"flaxformer {flaxformer.__version__}, jax {jax}, python {platform.python_version()}"
