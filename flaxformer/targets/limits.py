"""The largest number, of examples or of runs, whose program fits, by compiling for some numbers."""

from collections.abc import Callable
from typing import NamedTuple

from flaxformer.targets.program import CompiledStep

COMPILATIONS = 6
"""Programs that are compiled at most, besides the first."""


class Largest(NamedTuple):
    """Result of a search.

    Args:
      number: the largest multiple of the unit that was compiled and fits; 0 if none does.
      too_large: the smallest that was compiled and does not fit; None if all fit.
    """

    number: int
    too_large: int | None

    def describe(self, ceiling: int | None = None) -> str:
        """Return the result in words."""
        if self.number == ceiling:
            return f"{self.number:,}, all"
        if self.too_large is None:
            return f"at least {self.number:,}"
        return f"{self.number:,} ({self.too_large:,} does not fit)" if self.number else f"below {self.too_large:,}"


def largest(
    compile_for: Callable[[int], CompiledStep], first: int, unit: int, program: CompiledStep, ceiling: int | None = None
) -> Largest:
    """Search the largest multiple of `unit` that fits; memory is taken to grow about linearly.

    Args:
      compile_for: compiles for a number.
      first: number of `program`, which is compiled already.
      ceiling: largest number of interest.
    """
    known = {first // unit: program}
    top = None if ceiling is None else max(1, ceiling // unit)
    for _ in range(COMPILATIONS):
        fitting = max((n for n, own in known.items() if own.fits), default=0)
        failing = min((n for n, own in known.items() if not own.fits), default=None)
        guess = _guess(known, fitting, failing)
        guess = guess if top is None else min(guess, top)
        if guess in known or (failing is not None and failing - fitting <= max(1, fitting // 16)):
            break
        known[guess] = compile_for(guess * unit)
    fitting = max((n for n, own in known.items() if own.fits), default=0)
    failing = min((n for n, own in known.items() if not own.fits), default=None)
    return Largest(fitting * unit, None if failing is None else failing * unit)


def _guess(known: dict[int, CompiledStep], fitting: int, failing: int | None) -> int:
    """Return the next number to try, in units."""
    sizes = sorted((n, own.needed) for n, own in known.items() if own.needed)
    available = next(iter(known.values())).available
    guess = 0
    if len(sizes) > 1:
        (low, small), (high, big) = sizes[-2:]
        slope = (big - small) / (high - low)
        guess = int(low + (available - small) / slope) if slope > 0 else 2 * high
    elif sizes:
        guess = int(sizes[0][0] * available / sizes[0][1])
    if failing is None:
        return min(max(guess, fitting + max(1, fitting // 8)), 8 * max(1, fitting))
    if failing == fitting + 1:
        return failing
    return min(max(guess, fitting + 1), failing - 1)
