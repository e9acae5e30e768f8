"""Rule of numbers that are not finite, wherever scores are read: NaN and ±∞ are not scores, and their seeds are named.

Such a number is never replaced, averaged, ranked or chosen. The one replacement is that of `study.divergence`: a run
that diverged in training counts with its metric before training.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from flaxformer.system.wording import count_of

MOST_LISTED = 12
"""Largest number of seeds that a sentence names, and of such sentences in a report."""


LARGEST = 1e100
"""Largest size of a score: squares and cubes of larger differences overflow, so that they count as infinite."""


def finite(value: object) -> float | None:
    """Return a number as a float; None if it is not finite, or beyond `LARGEST`, or is not a number."""
    return float(value) if isinstance(value, int | float) and -LARGEST <= value <= LARGEST else None


def finite_values(values: Iterable[object]) -> list[float]:
    """Return the finite numbers among some values, in their order."""
    return [number for number in map(finite, values) if number is not None]


@dataclasses.dataclass(frozen=True)
class WithoutValue:
    """Seeds at which a number is not finite, in an arm or in several."""

    name: str
    """Name of the number, such as a metric."""
    seeds: tuple[int, ...]
    declared: int
    """Number of declared seeds."""
    where: str = ""
    """Arm of the number in words."""

    @property
    def sentence(self) -> str:
        """The seeds in a clause, such as "2 of 8 seeds have no finite value of score: seeds 3, 5"."""
        n, place = len(self.seeds), f" with {self.where}" if self.where else ""
        shown = ", ".join(map(str, self.seeds[:MOST_LISTED])) + (", …" if n > MOST_LISTED else "")
        return (
            f"{n} of {count_of(self.declared, 'seed')} {'has' if n == 1 else 'have'} no finite value of "
            f"{self.name}{place}: seed{'' if n == 1 else 's'} {shown}"
        )


def join_arms(gaps: Sequence[WithoutValue]) -> list[WithoutValue]:
    """Return the seeds of each name in any arm, without the arms."""
    names = {gap.name: gap.declared for gap in gaps}
    seeds = {name: {seed for gap in gaps if gap.name == name for seed in gap.seeds} for name in names}
    return [WithoutValue(name, tuple(sorted(seeds[name])), declared) for name, declared in names.items() if seeds[name]]


def describe_left_out(gaps: Sequence[WithoutValue]) -> list[str]:
    """Return a sentence on each number that is not finite at some seeds, and how many more there are."""
    more = len(gaps) - MOST_LISTED
    last_sentence = [f"{count_of(more, 'other number')} {'is' if more == 1 else 'are'} not finite at some seeds."]
    return [f"{gap.sentence}; they are left out." for gap in gaps[:MOST_LISTED]] + (last_sentence if more > 0 else [])
