"""Division of the program groups of a study among jobs, and the options of launchers."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import TypeVar

from flaxformer.study.arm import Trial
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError

T = TypeVar("T")

Jobs = list[list[ProgramGroup] | None]
"""Groups of each job; or `EVERYTHING`: all missing groups, which the jobs divide among themselves by leases."""
EVERYTHING = None
USED_BY = {"workers": ("local", "slurm", "ray"), "slurm": ("slurm",), "ray": ("ray",), "interface": ("slurm",)}
"""Launchers that accept each option."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a launcher, from the command line.

    Args:
      workers: largest number of processes or jobs.
      slurm: KEY=VALUE options for `sbatch`.
      ray: KEY=VALUE resources of a task: cpus, gpus.
      interface: network interface, by name or address, on which the processes of a job connect.
    """

    workers: int | None = None
    slurm: tuple[str, ...] = ()
    ray: tuple[str, ...] = ()
    interface: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers is {self.workers}; expected at least 1")

    def check(self, launcher: str | None) -> None:
        """Check that every given option belongs to the launcher.

        Raises:
          UserError: an option belongs to another launcher.
        """
        for name, others in USED_BY.items():
            if (value := getattr(self, name)) and launcher not in others:
                expected = " or ".join(f"--launcher {other}" for other in others)
                raise UserError(f"--{name} is given {value} and launcher is {launcher}; expected {expected} with it")


def assign(groups: Sequence[ProgramGroup], jobs: int) -> Jobs:
    """Assign groups to jobs, the largest first, each to the job with the least work so far.

    With fewer groups than jobs, each job gets an equal share of all trials instead.
    """
    if len(groups) < jobs:
        trials = [(group, trial) for group in groups for trial in group.trials]
        return [_grouped(part) for part in shares(trials, min(jobs, len(trials)))]
    assigned: list[list[ProgramGroup]] = [[] for _ in range(jobs)]
    loads = [0] * jobs
    for size, group in sorted(((work(group), group) for group in groups), key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        assigned[least].append(group)
        loads[least] += size
    return list(assigned)


def shares(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Split items into contiguous parts of nearly equal length."""
    ends = [len(items) * part // parts for part in range(parts + 1)] if parts else []
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]


def _grouped(trials: Sequence[tuple[ProgramGroup, Trial]]) -> list[ProgramGroup]:
    """Return groups that hold only the given trials."""
    pairs = itertools.groupby(trials, key=lambda pair: pair[0].name)
    own = [list(found) for _, found in pairs]
    return [dataclasses.replace(found[0][0], trials=tuple(trial for _, trial in found)) for found in own]


def work(group: ProgramGroup) -> int:
    """Return the number of tokens that a group has to process."""
    run = group.example
    return len(group.trials) * run.training.steps * run.tokens_per_step


def names(jobs: Jobs) -> tuple[tuple[str, ...] | None, ...]:
    """Return the names of the trials of each job."""
    return tuple(None if job is None else tuple(trial.name for group in job for trial in group.trials) for job in jobs)


def parse_key_values(option: str, words: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE words as a mapping.

    Raises:
      UserError: a word has another form, or a key is given twice.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z-]*", key) or not value.isprintable() or not value:
            raise UserError(f"{option} is given {word!r}; expected KEY=VALUE, such as time=60")
        if key in found:
            raise UserError(f"{option} is given {key} twice, as {found[key]} and {value}; expected it once")
        found[key] = value
    return found


def parse_int(option: str, key: str, value: str, least: int = 1) -> int:
    """Return a value as an integer.

    Raises:
      UserError: it is not an integer, or is below `least`.
    """
    if not value.isascii() or not value.isdecimal() or int(value) < least:
        raise UserError(f"{option} is given {key}={value}; expected a whole number of at least {least}")
    return int(value)
