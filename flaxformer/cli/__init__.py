"""The command `flaxformer`: see `flaxformer --help`."""

import dataclasses
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import tyro
from rich.console import Console
from rich.text import Text

from flaxformer.cli.claims import Claims
from flaxformer.cli.generate import Generate
from flaxformer.cli.options import INTERRUPTED, USER_ERROR
from flaxformer.cli.prepare import Prepare
from flaxformer.cli.study import Plan, Report, Run
from flaxformer.cli.train import Train
from flaxformer.struct import UserError
from flaxformer.study.execute import one_cpu_device_per_core

COMMANDS: dict[str, Any] = {
    "plan": Plan,
    "run": Run,
    "report": Report,
    "claims": Claims,
    "prepare": Prepare,
    "train": Train,
    "generate": Generate,
}


def _with_set(arguments: Sequence[str]) -> list[str]:
    """Let `path=value` words stand anywhere on the line of a command that has --set, without it before them."""
    fields = dataclasses.fields(COMMANDS[arguments[0]]) if arguments and arguments[0] in COMMANDS else ()
    if "overrides" not in {field.name for field in fields}:
        return list(arguments)
    override = [
        bool(re.match(r"[a-z_]+(\.[a-z0-9_]+)*=", word)) and before != "--mesh"
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    words = [word for word, is_one in zip(arguments, override, strict=True) if is_one]
    rest = [word for word, is_one in zip(arguments, override, strict=True) if not is_one and word != "--set"]
    return [*rest, "--set", *words] if words else rest


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 for failed runs, 2 for a user's mistake, 130 when interrupted."""
    console, errors = Console(), Console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    one_cpu_device_per_core()
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="flaxformer",
            args=_with_set(sys.argv[1:] if arguments is None else arguments),
            description="State a question in one short file, run it, read the answer with its uncertainty.",
        )
        return command(console)
    except UserError as error:
        errors.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        return USER_ERROR
    except KeyboardInterrupt:
        errors.print("Stopped. Finished runs are kept; run the same command again to continue.")
        return INTERRUPTED
