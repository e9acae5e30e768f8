"""How the groups of a study are dealt out to jobs, and what the command line says of it."""

import dataclasses
import re
from collections.abc import Sequence

from flaxformer.struct import UserError
from flaxformer.study.plan import Group

Jobs = list[list[Group] | None]
"""Each job's groups, or `EVERYTHING` that is missing, of which leases decide what is whose."""
EVERYTHING = None


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says to a launcher.

    Args:
      workers: processes or jobs at most.
      slurm: KEY=VALUE words for `sbatch`.
      ray: KEY=VALUE words for a task: cpus, gpus.
      interface: the network on which the processes of a job find each other: a name or an address.
    """

    workers: int | None = None
    slurm: tuple[str, ...] = ()
    ray: tuple[str, ...] = ()
    interface: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers is {self.workers}; expected at least 1")


def dealt(groups: Sequence[Group], jobs: int) -> Jobs:
    """The groups dealt out to so many jobs, the longest first, each to the job with the least to do.

    Where there are fewer groups than jobs, groups are cut into shares of their cells, as many as there are jobs.
    """
    found = list(groups)
    while (
        0 < len(found) < jobs
        and len((longest := max(found, key=lambda group: (len(group.cells) > 1, work(group)))).cells) > 1
    ):
        found.remove(longest)
        half = len(longest.cells) // 2
        found += [dataclasses.replace(longest, cells=part) for part in (longest.cells[:half], longest.cells[half:])]
    hands: list[list[Group]] = [[] for _ in range(min(jobs, len(found)))]
    for group in sorted(found, key=work, reverse=True):
        min(hands, key=lambda hand: sum(map(work, hand))).append(group)
    return list(hands)


def work(group: Group) -> int:
    """Tokens that a group has yet to read."""
    run = group.example
    return len(group.cells) * run.training.steps * run.tokens_per_step


def names(jobs: Jobs) -> tuple[tuple[str, ...] | None, ...]:
    """Each job's cells, by name."""
    return tuple(None if job is None else tuple(cell.name for group in job for cell in group.cells) for job in jobs)


def pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE words as a mapping.

    Raises:
      UserError: a word is none, or a key comes twice.
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


def whole(option: str, key: str, value: str, least: int = 1) -> int:
    """A value as a whole number.

    Raises:
      UserError: it is none, or lower than the least.
    """
    if not value.isascii() or not value.isdecimal() or int(value) < least:
        raise UserError(f"{option} is given {key}={value}; expected a whole number of at least {least}")
    return int(value)
