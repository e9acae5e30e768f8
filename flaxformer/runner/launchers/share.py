"""Shares of the runs of a study, one per worker."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from flaxformer.store.declaration import DeclaredTrial
from flaxformer.system.errors import UserError


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
