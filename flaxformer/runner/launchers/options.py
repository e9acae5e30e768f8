"""Options of launchers, and shares of the runs of a study, from the command line."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from flaxformer.store.declaration import DeclaredTrial
from flaxformer.system.errors import UserError
from flaxformer.system.settings import check_numbers

USED_BY = {"workers": ("local", "slurm", "ray"), "slurm": ("slurm",), "ray": ("ray",)}
"""Launchers that accept each option."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a launcher.

    Args:
      workers: largest number of processes or jobs.
      slurm: KEY=VALUE options for `sbatch`.
      ray: KEY=VALUE resources of a task: cpus, gpus.
    """

    workers: int | None = None
    slurm: tuple[str, ...] = ()
    ray: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, ["workers"])

    def check(self, launcher: str | None) -> None:
        """Check that every given option belongs to the launcher.

        Raises:
          UserError: an option belongs to another launcher.
        """
        for name, launchers in USED_BY.items():
            if (value := getattr(self, name)) and launcher not in launchers:
                expected = " or ".join(f"--launcher {kind}" for kind in launchers)
                raise UserError(f"--{name} is given {value} and launcher is {launcher}; expected {expected} with it")


def parse_key_values(option: str, words: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE words as a mapping.

    Raises:
      UserError: a word has another form, or a key is given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z-]*", key) or not value.isprintable() or not value:
            raise UserError(f"{option} is given {word!r}; expected KEY=VALUE, such as time=60")
        if key in values:
            raise UserError(f"{option} is given {key} twice, as {values[key]} and {value}; expected it once")
        values[key] = value
    return values


def parse_int(option: str, key: str, value: str, least: int = 1) -> int:
    """Return a value as an integer.

    Raises:
      UserError: it is not an integer, or is below `least`.
    """
    if not value.isascii() or not value.isdecimal() or int(value) < least:
        raise UserError(f"{option} is given {key}={value}; expected a whole number of at least {least}")
    return int(value)


@dataclasses.dataclass(frozen=True)
class Share:
    """Share `number` of `parts` of the runs of a study, from 1; written 2/4."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the share that a text names.

        Raises:
          UserError: it is not K/N with 1 ≤ K ≤ N.
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        share = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= share.number <= share.parts:
            raise UserError(f"share is '{text}'; expected K/N, the K-th of N shares, such as 2/4")
        return share

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def names(self, trials: Sequence[DeclaredTrial]) -> list[str]:
        """Return the names of the trials of this share.

        The shares are of nearly equal length and contain every trial once, whether it has a result or not. Trials of a
        program stay together where that is possible, since each worker compiles the programs of its share.

        Args:
          trials: the trials of the study's declaration.
        """
        programs = list(dict.fromkeys(trial.group for trial in trials))
        ordered = sorted(trials, key=lambda trial: programs.index(trial.group))
        begin, end = (len(ordered) * part // self.parts for part in (self.number - 1, self.number))
        return [trial.trial for trial in ordered[begin:end]]


def shares(parts: int) -> list[Share]:
    """Return all shares of this many parts."""
    return [Share(number, parts) for number in range(1, parts + 1)]
