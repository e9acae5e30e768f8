"""The command `flaxformer`: see `flaxformer --help`."""

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
from flaxformer.cli.study import Plan, Report, Run
from flaxformer.cli.train import Train
from flaxformer.struct import UserError
from flaxformer.study.execute import one_cpu_device_per_core

COMMANDS: dict[str, Any] = {
    "plan": Plan,
    "run": Run,
    "report": Report,
    "claims": Claims,
    "train": Train,
    "generate": Generate,
}


def _with_set(arguments: Sequence[str]) -> list[str]:
    """Let `path=value` words stand anywhere on the line, without --set before them."""
    words = [word for word in arguments if re.match(r"[a-z_]+(\.[a-z0-9_]+)*=", word)]
    rest = [word for word in arguments if word not in words and word != "--set"]
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
