"""Laws: properties that every architecture must have, each a function of a subject with a verdict."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np

Verdict = Literal["ok", "violated", "not applicable"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a law found: the verdict, and in words where and by how much, or why it does not apply."""

    verdict: Verdict
    words: str = ""


OK = Finding("ok")


def violated(words: str) -> Finding:
    """A law that does not hold."""
    return Finding("violated", words)


def not_applicable(why: str) -> Finding:
    """A law that says nothing about this subject."""
    return Finding("not applicable", why)


@dataclasses.dataclass(frozen=True)
class Law:
    """One property.

    Args:
      name: by which `Component.exempt_from` and the command line call it.
      claim: what holds, in a sentence.
      check: from a subject to what was found.
    """

    name: str
    claim: str
    check: Callable[[Any], Finding]


def law(name: str, claim: str) -> Callable[[Callable[[Any], Finding]], Law]:
    """Make a law of a function."""
    return lambda check: Law(name, claim, check)


# --- comparing ---------------------------------------------------------------------------------------------


def tolerance(x: np.ndarray) -> float:
    """How far two computations of the same numbers may differ: a few thousand units in the last place."""
    return 1e-9 if x.dtype == np.float64 else 3e-5 if x.dtype == np.float32 else 3e-2


def difference(a: Any, b: Any) -> float:
    """max |a − b| / (1 + max |a|), infinite where one is not finite and the other is; 0 for nothing."""
    a, b = np.asarray(a), np.asarray(b)
    if a.size == 0:
        return 0.0
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    gap = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    return float(gap.max() / (1 + np.abs(np.where(finite, a, 0)).max()))


def compared(a: Any, b: Any, what: str) -> Finding:
    """Whether two arrays are equal up to rounding; `what` says which they are."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return violated(f"{what} differ in shape: {a.shape} and {b.shape}")
    gap = difference(a, b)
    if gap <= tolerance(a):
        return OK
    place = np.unravel_index(int(np.nan_to_num(np.abs(a - b), nan=np.inf).argmax()), a.shape)
    return violated(f"{what} differ by {gap:.2g} (relative), most at {tuple(map(int, place))}")


def compared_trees(a: Any, b: Any, what: str) -> Finding:
    """Whether two trees are equal up to rounding, leaf by leaf."""
    for (path, x), (_, y) in zip(_leaves(a), _leaves(b), strict=True):
        found = compared(x, y, f"{what} at {path}")
        if found.verdict != "ok":
            return found
    return OK


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def worst(*findings: Finding) -> Finding:
    """The first that is violated, or the first."""
    return next((one for one in findings if one.verdict == "violated"), findings[0])
