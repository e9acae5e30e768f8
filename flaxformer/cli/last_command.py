"""The last recorded command of a folder of results; nothing here imports JAX."""

from collections.abc import Sequence
from typing import Any

from flaxformer.cli.parsing import parse
from flaxformer.store.line_forms import command_words
from flaxformer.system.digests import JsonObject


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
