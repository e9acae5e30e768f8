"""Parsing of the command line, and the help; nothing here imports JAX."""

import inspect
import re
from collections.abc import Sequence
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flaxformer.cli.arguments import COMMANDS
from flaxformer.cli.field_words import check_field_words
from flaxformer.system.errors import UserError, did_you_mean

INTRODUCTION = "Declare a Transformer ablation in one short file, run it, and read the answer with its uncertainty."
EXAMPLES = """flaxformer new study my_study
flaxformer plan my_study.py
flaxformer run my_study.py"""
EXIT_CODES = {
    0: "success",
    1: "a run failed, `train` diverged, a law is violated, or `verify` found a difference",
    2: "a mistake in the command, a file or a setting; the message says what to change",
    130: "stopped by Ctrl-C, SIGTERM or SIGUSR2; the same command resumes",
}
SETTINGS = (tyro.conf.FlagCreatePairsOff,)


def show_help(console: Console) -> None:
    """Print what the command is for, its subcommands with a line each, examples, and the exit codes."""
    commands = {name: summary(name) for name in COMMANDS}
    options = {"--help": "show this help", "--version": "show the versions of flaxformer, JAX and Python"}
    codes = {str(code): meaning for code, meaning in EXIT_CODES.items()}
    console.print(Text.assemble("usage: flaxformer ", ("COMMAND", "bold"), " [ARGUMENTS]\n\n", INTRODUCTION))
    for title, entries in (("commands", commands), ("options", options), ("exit codes", codes)):
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, meaning in entries.items():
            table.add_row(Text(name, "bold"), meaning)
        console.print(f"\n{title}", style="dim")
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print("\nexamples", style="dim")
    console.print(Padding(Text(EXAMPLES), (0, 0, 0, 2)))
    console.print("\nflaxformer COMMAND --help explains a command, with examples.")


def summary(name: str) -> str:
    """The first line of a command's docstring."""
    return (inspect.getdoc(COMMANDS[name]) or "").splitlines()[0]


def parse(words: Sequence[str]) -> object:
    """The arguments of a command, as an instance of its class in `COMMANDS`; the first word is its name.

    Raises:
      UserError: no such command, or a field of the config in another form than PATH=VALUE.
      SystemExit: code 0 after --help; code 2 for arguments that cannot be read, which are explained.
    """
    name, *options = words
    if name not in COMMANDS:
        raise UserError(f"there is no command '{name}'{did_you_mean(name, list(COMMANDS))}")
    command = COMMANDS[name]
    fields = get_type_hints(command)
    if {"file", "overrides"} <= fields.keys():  # `bench` changes options of a benchmark
        check_field_words(options, {f"--{field.replace('_', '-')}" for field in fields})
    text, arguments = inspect.getdoc(command), with_port(with_set(command, options))
    return tyro.cli(command, prog=f"flaxformer {name}", args=arguments, description=text, config=SETTINGS)


def all_commands() -> type:
    """The union of all commands as tyro reads it, for shell completion."""
    return Union[  # type: ignore[return-value]  # noqa: UP007  # of classes that are known at run time
        tuple(
            Annotated[command, tyro.conf.subcommand(name=name, description=summary(name))]
            for name, command in COMMANDS.items()
        )
    ]


def with_set(command: type, arguments: Sequence[str]) -> list[str]:
    """Let `path=value` words stand anywhere on the line of a command that has --set, without it before them.

    A word after an option that takes one value is this value, also if it has the form of a change.
    """
    if not hasattr(command, "overrides"):
        return list(arguments)
    override, before, option, single = [], "", "", _options_of_one_value(command)
    for word in arguments:
        path = re.match(r"[a-z_]+(\.[a-z0-9_]+)*=", word)
        option = word if word.startswith("--") else option if "=" in word else ""
        owned = before in single or (option in ("--slurm", "--ray") and "." not in word.partition("=")[0])
        override.append(path is not None and not owned)
        before = word
    words = [word for word, is_override in zip(arguments, override, strict=True) if is_override]
    remaining = [
        word for word, is_override in zip(arguments, override, strict=True) if not is_override and word != "--set"
    ]
    return [*remaining, "--set", *words] if words else remaining


def with_port(arguments: Sequence[str]) -> list[str]:
    """Let --serve stand without a port, for a free one."""
    words: list[str] = []
    for word, after in zip(arguments, (*arguments[1:], "--"), strict=False):
        words += [word, "0"] if word == "--serve" and after.startswith("--") else [word]
    return words


def _options_of_one_value(command: type) -> set[str]:
    """Return the options of a command that take exactly one value."""
    kinds = {name: (kind, *get_args(kind)) for name, kind in get_type_hints(command).items()}
    return {
        f"--{name.replace('_', '-')}"
        for name, parts in kinds.items()
        if parts[0] is not bool and not any(get_origin(part) is tuple for part in parts)
    }
