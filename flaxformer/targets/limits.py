"""The largest number, of examples or of runs, whose program fits, by compiling for some numbers."""

from collections.abc import Callable
from typing import NamedTuple

from flaxformer.targets.compiler import NotCompiled
from flaxformer.targets.program import CompiledStep

COMPILATIONS = 6
"""Programs that are compiled at most, besides the first."""


class Largest(NamedTuple):
    """Result of a search.

    Args:
      number: the largest multiple of the unit that was compiled and fits; 0 if none does.
      too_large: the smallest that was compiled and does not fit; None if all fit.
      not_compiled: numbers for which the compiler failed, with how it ended.
    """

    number: int
    too_large: int | None
    not_compiled: tuple[tuple[int, str], ...] = ()

    def describe(self, ceiling: int | None = None) -> str:
        """Return the result in words."""
        if not self.not_compiled:
            return self.describe_range(ceiling)
        numbers = ", ".join(f"{number:,}" for number, _ in sorted(self.not_compiled))
        return f"{self.describe_range(ceiling)}; not known for {numbers}: {min(self.not_compiled)[1]}"

    def describe_range(self, ceiling: int | None = None) -> str:
        """Return in words what was compiled."""
        if self.number == ceiling:
            return f"{self.number:,}, all"
        if self.too_large is None:
            return f"at least {self.number:,}" if self.number or not self.not_compiled else "not known"
        return f"{self.number:,} ({self.too_large:,} does not fit)" if self.number else f"below {self.too_large:,}"


def largest(
    compile_for: Callable[[int], CompiledStep | NotCompiled],
    first: int,
    unit: int,
    program: CompiledStep | NotCompiled,
    ceiling: int | None = None,
) -> Largest:
    """Search the largest multiple of `unit` that fits; memory is taken to grow about linearly.

    A number for which the compiler fails says nothing about memory: the search goes on below it.

    Args:
      compile_for: compiles for a number.
      first: number of `program`, which is compiled already.
      ceiling: largest number of interest.
    """
    results = {first // unit: program}
    top = None if ceiling is None else max(1, ceiling // unit)
    for _ in range(COMPILATIONS):
        known = {n: compiled for n, compiled in results.items() if isinstance(compiled, CompiledStep)}
        fitting, failing = _bounds(known)
        guess = _guess(known, fitting, failing) if known else first // unit
        guess = guess if top is None else min(guess, top)
        unknown = min((n for n in results.keys() - known.keys() if n > fitting), default=None)
        if unknown is not None and guess >= unknown:
            guess = (fitting + unknown) // 2
        limit = min((n for n in (failing, unknown) if n is not None), default=None)
        if guess in results or guess < 1 or (limit is not None and limit - fitting <= max(1, fitting // 16)):
            break
        results[guess] = compile_for(guess * unit)
    fitting, failing = _bounds({n: compiled for n, compiled in results.items() if isinstance(compiled, CompiledStep)})
    not_compiled = ((n * unit, failure.reason) for n, failure in results.items() if isinstance(failure, NotCompiled))
    return Largest(fitting * unit, None if failing is None else failing * unit, tuple(not_compiled))


def _bounds(known: dict[int, CompiledStep]) -> tuple[int, int | None]:
    """Return the largest number that fits, or 0, and the smallest that does not, or None."""
    fitting = max((n for n, compiled in known.items() if compiled.fits), default=0)
    return fitting, min((n for n, compiled in known.items() if not compiled.fits), default=None)


def _guess(known: dict[int, CompiledStep], fitting: int, failing: int | None) -> int:
    """Return the next number to try, in units."""
    sizes = sorted((n, compiled.needed) for n, compiled in known.items() if compiled.needed)
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
