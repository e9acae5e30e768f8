"""Settings of the execution of runs, checked without JAX, so that a mistake in a command is answered at once."""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Self

from flaxformer.system.errors import UserError

LARGEST = 2**31 - 1
BOUNDS = {
    "devices": (1, LARGEST),
    "group_size": (1, LARGEST),
    "chunk_steps": (1, LARGEST),
    "save_every": (1, LARGEST),
    "keep_last": (1, LARGEST),
    "keep_best": (0, LARGEST),
    "samples": (0, 100_000),
}
"""Smallest and largest value of settings that are numbers."""


def check_bounds(settings: object, names: Iterable[str] = BOUNDS) -> None:
    """Check attributes of an object by `BOUNDS`; one that is None or absent is valid.

    Raises:
      UserError: one is out of its bounds.
    """
    for name in names:
        value, (least, most) = getattr(settings, name, None), BOUNDS[name]
        if value is not None and not least <= value <= most:
            raise UserError(f"{name} is {value}; expected at least {least} and at most {most:,}")


def check_save_minutes(minutes: float) -> None:
    """Raise UserError unless these are minutes between two saves, or 0 for never."""
    if not 0 <= minutes < math.inf:
        raise UserError(f"save_minutes is {minutes}; expected minutes, or 0 for never")


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """Number of steps to profile, and the first of them; without it, those after the first chunk of a launch."""

    count: int
    first: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the steps that a text names: COUNT or FIRST:COUNT.

        Raises:
          UserError: it is neither, or a number is 0.
        """
        match = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9})", text, re.ASCII)
        first, count = match.groups() if match else (None, "0")
        if int(count) < 1 or (first is not None and int(first) < 1):
            raise UserError(f"profile is '{text}'; expected a number of steps, or FIRST:COUNT, such as 101:10")
        return cls(int(count), None if first is None else int(first))


def mesh_sizes(text: str) -> dict[str, int]:
    """The sizes of the axes of a mesh that a text such as "data=2,tensor=4" names.

    Raises:
      UserError: it names another axis, one twice, or what is not a positive number.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(data|fsdp|tensor)\s*=\s*(\d{1,9})\s*", part, re.ASCII)
        if match is None or match[1] in sizes:
            raise UserError(f"mesh is '{text}'; expected devices along data, fsdp and tensor, such as data=4,tensor=2")
        if int(match[2]) < 1:
            raise UserError(f"mesh is '{text}': {match[1]} is 0; expected at least 1")
        sizes[match[1]] = int(match[2])
    return sizes


def check_processes(address: str | None, processes: int | None, process: int | None) -> None:
    """Check the address and the numbers of processes that train a run together.

    Args:
      address: HOST:PORT of the first process; "auto" lets JAX find it; None for a single process, or those of `srun`.
      processes: number of processes.
      process: number of this process, from 0.

    Raises:
      UserError: a malformed address, or one of the three without the others.
    """
    if address is None and (processes, process) != (None, None):
        raise UserError(f"processes is {processes} and process {process} without a coordinator; expected HOST:PORT")
    if address in (None, "auto"):
        return
    if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
        raise UserError(f"coordinator is '{address}'; expected HOST:PORT, or auto")
    if processes is None or process is None or not 0 <= process < processes:
        raise UserError(
            f"processes is {processes} and process {process}; expected the number of processes, and the number "
            "of this one, from 0"
        )
