"""Settings of the execution of runs, checked without JAX, so that a mistake in a command is answered at once."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Self

from flaxformer.system.bounds import check_number
from flaxformer.system.errors import UserError

LARGEST = 2**31 - 1
AT_LEAST_1, AT_LEAST_0 = ({"at_least": least, "at_most": LARGEST} for least in (1, 0))
NUMBERS: Mapping[str, Mapping[str, float]] = {
    "devices": AT_LEAST_1,
    "group_size": AT_LEAST_1,
    "chunk_steps": AT_LEAST_1,
    "save_every": AT_LEAST_1,
    "keep_last": AT_LEAST_1,
    "keep_best": AT_LEAST_0,
    "workers": AT_LEAST_1,
    "tokens": AT_LEAST_1,
    "trials": AT_LEAST_1,
    "seed": AT_LEAST_0,
    "trial_seed": AT_LEAST_0,
    "step": AT_LEAST_0,
    "leave_out": AT_LEAST_0,
    "samples": {"at_least": 0, "at_most": 100_000},
    "resamples": {"at_least": 0, "at_most": 1_000_000},
    "rounds": {"at_least": 1, "at_most": 1_000},
    "minutes": {"above": 0, "at_most": 10_080},
    "save_minutes": {"at_least": 0, "below": math.inf},
    "delta": {"above": 0, "below": math.inf},
    "beams": {"at_least": 1, "at_most": 4096},
    "temperature": {"above": 0, "below": math.inf},
    "top_k": {"at_least": 1},
    "top_p": {"above": 0, "at_most": 1},
}
"""Bounds of settings that are numbers, as those of a config's field are written."""


def check_numbers(settings: object, names: Iterable[str] = NUMBERS) -> None:
    """Check attributes of an object by `NUMBERS`; one that is None, absent or not a number is left to its reader.

    Raises:
      UserError: one is out of its bounds.
    """
    for name in names:
        if isinstance(value := getattr(settings, name, None), int | float):
            check_number(name, value, NUMBERS[name])


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
