"""Laws: properties that every architecture must have, each a function from a subject to a finding."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Literal, SupportsInt, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

LawVerdict = Literal["ok", "violated", "not applicable"]
SubjectT = TypeVar("SubjectT")


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one law.

    Args:
      verdict: the verdict.
      words: where and by how much the law is violated, or why it does not apply.
      repair: how to repair this violation, if the usual cause is not that of the law.
    """

    verdict: LawVerdict
    words: str = ""
    repair: str = ""

    @property
    def is_violated(self) -> bool:
        """True if the law does not hold."""
        return self.verdict == "violated"


OK = Finding("ok")


NOT_FINITE = (
    "a vector of zeros, as padding has, gives 0/0, or the infinite slope of a root, a norm or a logarithm: "
    "add an epsilon to what is divided by, or whose root is taken"
)
"""Usual cause of a number that is not finite, and its repair."""


def violation(words: str, repair: str = "") -> Finding:
    """Return the finding of a law that does not hold."""
    return Finding("violated", words, repair)


def not_applicable(reason: str) -> Finding:
    """Return the finding of a law that does not apply to a subject."""
    return Finding("not applicable", reason)


@dataclasses.dataclass(frozen=True)
class Law(Generic[SubjectT]):
    """A property of models, and the function that checks it.

    Args:
      name: its name in `Component.exempt_from` and on the command line.
      claim: the property in one sentence.
      repair: how to repair a component that violates it, in one sentence without a capital and a full stop.
      check: function from a subject to a finding.
    """

    name: str
    claim: str
    repair: str
    check: Callable[[SubjectT], Finding]

    def repairs(self, finding: Finding) -> str:
        """Return how to repair a violation; of a number that is not finite, with the law's repair too."""
        texts = [finding.repair] if finding.repair else []
        if not finding.repair or finding.repair == NOT_FINITE:
            texts.append(self.repair)
        return ". Or: ".join(texts)


def law(name: str, claim: str, repair: str) -> Callable[[Callable[[SubjectT], Finding]], Law[SubjectT]]:
    """Return a decorator that makes a law of a checking function."""
    return lambda check: Law(name, claim, repair, check)


# --- comparison --------------------------------------------------------------------------------------------

TOLERANCES = {"float64": 1e-9, "float32": 3e-5}
"""Largest relative difference between two computations of equal values: a few thousand units in the last place."""


def tolerance(x: np.ndarray) -> float:
    """Return the largest relative difference between two computations of equal values, by their dtype."""
    return TOLERANCES.get(np.asarray(x).dtype.name, 3e-2)


def difference(a: ArrayLike, b: ArrayLike) -> float:
    """Return max |a − b| / (1 + max |a|); infinity if only one of two entries is finite, 0 for empty arrays."""
    a, b = np.asarray(a), np.asarray(b)
    if a.size == 0:
        return 0.0
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    gap = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    return float(gap.max() / (1 + np.abs(np.where(finite, a, 0)).max()))


def compare(a: ArrayLike, b: ArrayLike, what: str, allowed: float | None = None) -> Finding:
    """Compare two arrays, which must be equal up to rounding.

    Args:
      a, b: the arrays.
      what: their name in the message.
      allowed: the largest relative difference; by default that of the dtype.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return violation(f"{what} differ in shape: {a.shape} and {b.shape}")
    gap = difference(a, b)
    if gap <= (tolerance(a) if allowed is None else allowed):
        return OK
    if not np.isfinite(gap):
        place = np.argwhere(np.isfinite(a) != np.isfinite(b))[0]
        words = f"{what} differ: {a[tuple(place)]:.3g} and {b[tuple(place)]:.3g} at {_index(place)}"
        return violation(words, NOT_FINITE)
    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(a - b), nan=0, posinf=0)
    place = np.unravel_index(int(distance.argmax()), a.shape)
    return violation(f"{what} differ by {gap:.2g} (relative), most at {_index(place)}")


def _index(place: Iterable[SupportsInt]) -> str:
    return "[" + ", ".join(str(int(number)) for number in place) + "]"


def compare_trees(a: PyTree, b: PyTree, what: str, allowed: float | None = None) -> Finding:
    """Compare two trees, whose leaves must be equal up to rounding."""
    for (path, x), (_, y) in zip(_leaves(a), _leaves(b), strict=True):
        finding = compare(x, y, f"{what} at {path}", allowed)
        if finding.is_violated:
            return finding
    return OK


def _leaves(tree: PyTree) -> Iterator[tuple[str, ArrayLike]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def first_violated(findings: Iterable[Finding]) -> Finding:
    """Return the first violated finding, else the first one that applies; compute no finding after a violation."""
    applicable = OK
    for number, finding in enumerate(findings):
        if finding.is_violated:
            return finding
        applicable = finding if number == 0 or applicable.verdict == "not applicable" else applicable
    return applicable
