"""Parsing of command lines, that of the user and the last recorded one, and the help; nothing here imports JAX."""

import inspect
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flaxformer.cli.arguments import COMMANDS
from flaxformer.store.line_forms import command_words
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError, did_you_mean, quote

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
PATH = r"(?:model|task|optimizer|training|seeds|init|loss_terms|adapter)(?:\.\w+)+"
"""A field below one of those of a `Run`."""
FIELDS = {
    "batch-size": "task.batch_size",
    "d-model": "model.d_model",
    "dropout": "model.dropout",
    "evaluate-every": "training.evaluate_every",
    "heads": "model.attention.heads",
    "layers": "model.layers",
    "learning-rate": "optimizer.learning_rate",
    "length": "task.length",
    "lr": "optimizer.learning_rate",
    "optimizer": "optimizer",
    "precision": "training.precision",
    "steps": "training.steps",
    "warmup": "optimizer.warmup_steps",
    "warmup-steps": "optimizer.warmup_steps",
    "weight-decay": "optimizer.weight_decay",
}
"""Path of a field by the option that other programs have for it."""


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
      UserError: no such command, a field of the config in another form than PATH=VALUE, or a word in place of a number.
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
    check_number_words(command, arguments)
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


def check_number_words(command: type, words: Sequence[str]) -> None:
    """Check that the values of options that are numbers are numbers.

    Raises:
      UserError: one is not, with the option and the word.
    """
    kinds, option = get_type_hints(command), ""
    for word in words:
        if word.startswith("--"):
            option, _, word = word.partition("=")
        parts = _parts(kinds.get(option[2:].replace("-", "_")))
        number = next((kind for kind in (float, int) if kind in parts), None)
        if number is None or str in parts or not word or "=" in word:
            continue
        try:
            number(word)
        except ValueError:
            expected = "a whole number" if number is int else "a number"
            raise UserError(f"{option} is {quote(word)}; expected {expected}") from None
        option = option if tuple in map(get_origin, parts) else ""


def _parts(kind: object) -> list[object]:
    """Return a type, and all that it is composed of."""
    return [kind, *(part for inner in get_args(kind) for part in _parts(inner))]


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


def last_command(launches: Sequence[JsonObject]) -> Any:
    """Return the arguments of the last recorded command `run`; None without one."""
    command = next((launch["command"] for launch in reversed(launches) if launch.get("command")), "")
    words = command_words(command)[1:]
    return parse(words) if words[:1] == ["run"] else None


def overrides_of(launches: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return what the last recorded command `run` changed in the study: fields, and the seeds."""
    arguments = last_command(launches)
    if arguments is None:
        return ()
    seeds = () if arguments.seeds is None else (f"--seeds {arguments.seeds}",)
    return (*arguments.overrides, *seeds)


def check_field_words(words: Sequence[str], options: Collection[str]) -> None:
    """Check that a word that means a field is PATH=VALUE, and one that means an option is the option.

    Args:
      words: the words after the name of a command that changes fields.
      options: options of the command, such as "--seeds".

    Raises:
      UserError: a path without a value, one with spaces around "=", a field as an option, or an option as a field.
    """
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        name, equals, value = (part.strip() for part in word.partition("="))
        if equals and f"--{name}" in options and not value[:1].isupper():  # but seeds=Seeds(data=0)
            raise UserError(f"{word!r} is no field of the run; expected --{name} {value}")
        if name in options or before in options or word.endswith(".py") or Path(word).exists():
            continue
        path = FIELDS.get(name[2:].replace("_", "-"), "") if name.startswith("--") else ""
        if re.fullmatch(rf"(?:--)?{PATH}", name):
            path = name.removeprefix("--")
        if path and (word.startswith("--") or not equals or word != f"{name}={value}"):
            shown = value or ("VALUE" if after.startswith("-") or "=" in after else after) or "VALUE"
            raise UserError(f"{word!r} is no option; expected the field and its value in one word: {path}={shown}")
