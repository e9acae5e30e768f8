"""The command `flaxformer`: see `flaxformer --help`."""

import importlib
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro
from rich.console import Console
from rich.text import Text

from flaxformer.cli.options import INTERRUPTED, USER_ERROR

COMMANDS = {
    "check": ("check.Check", "Check the laws that every architecture must obey on each model of a study or run."),
    "new": ("new.New", "Write a commented file to start from: a study, a component of a model, or a task."),
    "plan": (
        "study.Plan",
        "Show a study's trials, programs, parameters, FLOPs, memory and time, before anything is trained.",
    ),
    "run": ("study.RunStudy", "Train every run of a study that is missing, then write and show its report."),
    "status": ("study.Status", "Show how far a folder of results is, and who is at work on it."),
    "report": (
        "study.Report",
        "Write and show the report of a folder of results again, from what is on disk; the study's file is not needed.",
    ),
    "claims": (
        "claims.Claims",
        "Measure the claims of the founding texts, each with its verdict; what is done already is not done again.",
    ),
    "bench": (
        "bench.Bench",
        "Measure speed beside peers and limits, each in a process of its own; without a name, list what there is.",
    ),
    "prepare": (
        "prepare.Prepare",
        "Read a text, or the lines of two that translate each other, into a folder of tokens to train on.",
    ),
    "train": ("train.Train", "Train one run; the same command again goes on after its newest checkpoint."),
    "generate": (
        "generate.Generate",
        "Continue a prompt with a trained run, token by token; or translate it, with a run that learned pairs.",
    ),
}
"""Each command's class, and the first line that it says of itself. Only the one that is called is imported, and with it
JAX: help is to come at once."""


def _class(name: str) -> Any:
    """The class of a command."""
    module, _, own = COMMANDS[name][0].partition(".")
    return getattr(importlib.import_module(f"flaxformer.cli.{module}"), own)


def _named(summary: str) -> Callable[[], None]:
    """Return the placeholder of a command for the list of commands."""

    def command() -> None:
        pass

    command.__doc__ = summary
    return command


def _with_set(command: Any, arguments: Sequence[str]) -> list[str]:
    """Let `path=value` words stand anywhere on the line of a command that has --set, without it before them."""
    if "overrides" not in command.__dataclass_fields__:
        return list(arguments)
    override, before, option = [], "", ""
    for word in arguments:
        path = re.match(r"[a-z_]+(\.[a-z0-9_]+)*=", word)
        option = word if word.startswith("--") else option if "=" in word else ""
        owned = before == "--mesh" or (option in ("--slurm", "--ray") and "." not in word.partition("=")[0])
        override.append(path is not None and not owned)
        before = word
    words = [word for word, is_one in zip(arguments, override, strict=True) if is_one]
    rest = [word for word, is_one in zip(arguments, override, strict=True) if not is_one and word != "--set"]
    return [*rest, "--set", *words] if words else rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 for failed runs, 2 for a user's mistake, 130 when interrupted.

    From the shell (no arguments given here), compiled programs are kept; elsewhere JAX stays as its user set it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else ""
    if name not in COMMANDS:
        tyro.extras.subcommand_cli_from_dict(
            {name: _named(summary) for name, (_, summary) in COMMANDS.items()},
            prog="flaxformer",
            args=words,
            description="State a question in one short file, run it, read the answer with its uncertainty.",
        )
        return 0
    command = _class(name)
    if arguments is None:
        importlib.import_module("flaxformer.startup.compilation_cache").keep_compiled_programs()
    return _called(command, name, words[1:])


def _called(command: Any, name: str, words: Sequence[str]) -> int:
    """The exit code of a command; what a user can mend is one line."""
    from flaxformer.interrupts import interrupt, interrupted
    from flaxformer.startup import cuda
    from flaxformer.startup.cpu_devices import one_cpu_device_per_core
    from flaxformer.struct import UserError

    console, errors = Console(), Console(stderr=True)
    interrupted.clear()
    own = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []  # ignored under nohup
    for number in (*own, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, interrupt)
    cuda.preload()
    one_cpu_device_per_core()
    try:
        return tyro.cli(command, prog=f"flaxformer {name}", args=_with_set(command, words))(console)
    except UserError as error:
        errors.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        return USER_ERROR
    except KeyboardInterrupt:
        errors.print("Stopped. What is finished or saved is kept; run the same command again to continue.")
        return INTERRUPTED
