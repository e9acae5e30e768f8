"""Laws: properties that every architecture must have, each a function of a subject with a verdict."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

LawVerdict = Literal["ok", "violated", "not applicable"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one law: the verdict, and in words where and by how much it is violated, or why it does not apply."""

    verdict: LawVerdict
    words: str = ""

    @property
    def is_violated(self) -> bool:
        """True if the law does not hold."""
        return self.verdict == "violated"


OK = Finding("ok")


def violated(words: str) -> Finding:
    """Return the finding of a law that does not hold."""
    return Finding("violated", words)


def not_applicable(why: str) -> Finding:
    """Return the finding of a law that says nothing about this subject."""
    return Finding("not applicable", why)


@dataclasses.dataclass(frozen=True)
class Law:
    """One property.

    Args:
      name: used by `Component.exempt_from` and by the command line.
      claim: what holds, in a sentence.
      check: function from a subject to a finding.
    """

    name: str
    claim: str
    check: Callable[[Any], Finding]


def law(name: str, claim: str) -> Callable[[Callable[[Any], Finding]], Law]:
    """Make a law of a function."""
    return lambda check: Law(name, claim, check)


# --- comparison --------------------------------------------------------------------------------------------

TOLERANCES = {"float64": 1e-9, "float32": 3e-5}
"""Largest relative difference between two computations of the same numbers, a few thousand units in the last place."""


def tolerance(x: np.ndarray) -> float:
    """Return the largest difference between two computations of the same numbers, by their dtype."""
    return TOLERANCES.get(np.asarray(x).dtype.name, 3e-2)


def difference(a: Any, b: Any) -> float:
    """Return max |a − b| / (1 + max |a|): infinite where only one of two numbers is finite, 0 for empty arrays."""
    a, b = np.asarray(a), np.asarray(b)
    if a.size == 0:
        return 0.0
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    gap = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    return float(gap.max() / (1 + np.abs(np.where(finite, a, 0)).max()))


def compared(a: Any, b: Any, what: str, allowed: float | None = None) -> Finding:
    """Return whether two arrays are equal up to rounding.

    Args:
      what: name of the two arrays, for the message.
      allowed: the largest difference; by default that of the dtype.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return violated(f"{what} differ in shape: {a.shape} and {b.shape}")
    gap = difference(a, b)
    if gap <= (tolerance(a) if allowed is None else allowed):
        return OK
    if not np.isfinite(gap):
        place = np.argwhere(np.isfinite(a) != np.isfinite(b))[0]
        return violated(f"{what} differ: {a[tuple(place)]:.3g} and {b[tuple(place)]:.3g} at {_index(place)}")
    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(a - b), nan=0, posinf=0)
    place = np.unravel_index(int(distance.argmax()), a.shape)
    return violated(f"{what} differ by {gap:.2g} (relative), most at {_index(place)}")


def _index(place: Iterable[Any]) -> str:
    return "[" + ", ".join(str(int(number)) for number in place) + "]"


def compared_trees(a: Any, b: Any, what: str, allowed: float | None = None) -> Finding:
    """Return whether two trees are equal up to rounding, leaf by leaf."""
    for (path, x), (_, y) in zip(_leaves(a), _leaves(b), strict=True):
        found = compared(x, y, f"{what} at {path}", allowed)
        if found.is_violated:
            return found
    return OK


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def first_violated(findings: Iterable[Finding]) -> Finding:
    """Return the first violated finding, else the first one that applies; further ones are not evaluated."""
    found = OK
    for number, one in enumerate(findings):
        if one.is_violated:
            return one
        found = one if number == 0 or found.verdict == "not applicable" else found
    return found
