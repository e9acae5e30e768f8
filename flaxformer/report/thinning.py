"""Bounds of what a figure draws: evenly spaced arms of a long sweep, and evenly spaced seeds of many."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from flaxformer.analysis.sweep import Sweep, SweepLine

MOST_DOTS = 200
"""Largest number of seeds of an arm or claim that have a dot."""
MOST_LINES, MOST_POINTS = 40, 400
"""Largest number of lines of a sweep, and about the largest number of their points."""
Item = TypeVar("Item")


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many items, the first and the last among them, at equal distances."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def dots(values: Sequence[float]) -> list[float]:
    """The values themselves, or of many, `MOST_DOTS` at equal distances in increasing order."""
    return list(values) if len(values) <= MOST_DOTS else evenly(sorted(values), MOST_DOTS)


def thin_out(sweep: Sweep) -> Sweep:
    """The lines and points of a sweep that its figure draws; the best value of each line is among them."""
    lines = evenly(sweep.lines, MOST_LINES)
    return dataclasses.replace(sweep, lines=[_thinned_line(line, MOST_POINTS // len(lines)) for line in lines])


def _thinned_line(line: SweepLine, most: int) -> SweepLine:
    chosen = {id(point) for point in evenly(line.points, most)} | {id(line.best)}
    return dataclasses.replace(line, points=[point for point in line.points if id(point) in chosen])


def thinned_remark(sweep: Sweep) -> str:
    """Sentence on the arms of a sweep that its figure leaves out, after a space; empty without any."""
    drawn, arms = (sum(len(line.points) for line in version.lines) for version in (thin_out(sweep), sweep))
    return f" It shows {drawn:,} of {arms:,} arms, evenly spaced." if drawn < arms else ""
