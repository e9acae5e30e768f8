"""Claims about how a difference between two arms changes with size."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from flaxformer.store.declaration import QUANTITY, DeclaredClaim, Labels
from flaxformer.study.claim import Claim, Contrast, check_answers
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError
from flaxformer.system.wording import check_text

FEWEST_SIZES = 3
"""Number of sizes below which a slope is not tested."""
SAME = math.log10(1.01)
"""Largest difference of two sizes, in factors of ten, that counts as none: 1 %."""
NODES = 3
"""Number of neighbouring sizes by which a curve is interpolated: a parabola in log C."""


@dataclasses.dataclass(frozen=True)
class ScalingClaim:
    """An expectation about the slope of a gain in log₁₀ C, along the axis of `Study.scaling`.

    The gain of arm A over arm B at a size is L_B − L_A with `lower=A, than=B`, and L_A − L_B with `higher=A, than=B`.
    The slope is that of least squares through the gains at all sizes, held-out ones too, at each seed: a weighted sum
    of the runs, tested as the difference of any other claim. It has the unit of the metric per factor of ten of C.
    The claim has exactly one of three forms:

    - `slope_above=b`: the slope exceeds b. "The gain does not shrink" is b = −m, with the loss of gain m per factor of
      ten that would matter; with b = 0, the gain has to grow;
    - `slope_below=b`: the slope is below b, such as "the gain shrinks" with b = 0; reports give minus the slope;
    - `slope_within=m`: the slope is within ±m (tested by TOST): the gain is constant.

    The gain is the difference of the metric itself, not of its logarithm: it has the unit of other claims, and it is a
    contrast of runs without a transformation. Two laws with the same L∞ and α and a constant ratio of C at equal loss
    have a gain that shrinks in these terms, in proportion to L − L∞.

    If A and B differ by more than 1 % in C at the same size, the gain is that at equal C: at every size of either arm
    inside the range of the other, whose metric is interpolated by a parabola in log C through the three nearest sizes.

    Args:
      text: the claim in words.
      lower, higher: labels of arm A, without the axis over sizes.
      than: labels of arm B.
      where: labels of other axes, for both arms.
      slope_above, slope_below, slope_within: the claimed slope.
      answers: see `Claim`.

    Raises:
      UserError: the arguments do not match one form.
    """

    text: str
    _: dataclasses.KW_ONLY
    lower: Labels | None = None
    higher: Labels | None = None
    than: Labels | None = None
    where: Labels = dataclasses.field(default_factory=dict)
    slope_above: float | None = None
    slope_below: float | None = None
    slope_within: float | None = None
    answers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_text("claim text", self.text)
        for names, noun in ((("lower", "higher"), "arm"), (("slope_above", "slope_below", "slope_within"), "slope")):
            chosen = [name for name in names if getattr(self, name) is not None]
            if len(chosen) != 1:
                listed = " and ".join(chosen) or "none"
                raise UserError(f"claim '{self.text}' has {listed} of {', '.join(names)}; expected exactly one {noun}")
        for name in ("lower", "higher", "than"):
            labels = getattr(self, name)
            if labels is None and name != "than":
                continue
            if not isinstance(labels, Mapping) or QUANTITY in labels:
                raise UserError(f"claim '{self.text}' has {name}={labels!r}; expected labels of axes")
        for name in ("slope_above", "slope_below", "slope_within"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if value is not None and not (is_number and (name != "slope_within" or value > 0)):
                expected = "a number above 0" if name == "slope_within" else "a finite number"
                raise UserError(f"claim '{self.text}' has {name}={value!r}; expected {expected}")
        check_answers(self.text, self.answers)

    @property
    def kind(self) -> Literal["higher", "equal"]:
        """The form of the test: of a difference, or of an equality."""
        return "equal" if self.slope_within is not None else "higher"

    @property
    def by(self) -> float:
        """The bound that the tested slope has to exceed, in the direction of the claim."""
        return self.slope_above or 0.0 if self.slope_below is None else -self.slope_below

    @property
    def within(self) -> float | None:
        """The margin of an equality."""
        return self.slope_within

    def slope(
        self, complete: Callable[[Labels], Labels], axis: str, sizes: Sequence[str], size_of: Callable[[Labels], float]
    ) -> Contrast:
        """Return the slope of the gain as a contrast of runs, positive in the direction of the claim.

        Args:
          complete: function that adds the labels of the axes that are not mentioned.
          axis: axis over sizes.
          sizes: its levels.
          size_of: C of an arm.

        Raises:
          UserError: the claim names the axis, or fewer than three sizes of the arms have comparable C.
        """
        first, second = self.lower or self.higher or {}, self.than or {}
        if axis in {**first, **second, **self.where}:
            raise UserError(f"claim '{self.text}' names axis '{axis}', along which it has the slope; expected no label")
        pairs = [[complete({**self.where, **labels, axis: size}) for labels in (first, second)] for size in sizes]
        if any(arm == other for arm, other in pairs):
            raise UserError(f"claim '{self.text}' compares {first} with itself; expected different arms")
        places = [[math.log10(size_of(labels)) for labels in pair] for pair in pairs]
        weights = slope_weights(*np.array(places).T) if len(sizes) >= FEWEST_SIZES else None
        if weights is None:
            raise UserError(
                f"claim '{self.text}' has fewer than {FEWEST_SIZES} sizes of axis '{axis}' at which its arms have "
                "comparable C; expected at least so many"
            )
        sign = (1.0 if self.higher is not None else -1.0) * (1.0 if self.slope_below is None else -1.0)
        terms = []
        for (arm, other), weight, other_weight in zip(pairs, *weights, strict=True):
            terms += [(sign * float(weight), arm), (-sign * float(other_weight), other)]
        return Contrast(terms)


def slope_weights(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weights w, v for which Σ wᵢ Aᵢ − Σ vᵢ Bᵢ is the slope of A − B in log₁₀ C.

    Args:
      first, second: log₁₀ C of the arms A and B at each size.

    Returns:
      None if A − B is known at fewer than three different places.
    """
    if np.abs(first - second).max() <= SAME:
        places, w, v = (first + second) / 2, np.eye(len(first)), np.eye(len(first))
    else:
        low, high = max(first.min(), second.min()), min(first.max(), second.max())
        places = np.array([x for x in np.union1d(first, second) if low <= x <= high])
        w, v = (np.array([_interpolation(x, nodes) for x in places]) for nodes in (first, second))
    centred = places - (places.mean() if len(places) else 0.0)
    if (np.diff(np.sort(places)) > SAME).sum() < FEWEST_SIZES - 1:
        return None
    slope = centred / (centred @ centred)
    return slope @ w, slope @ v


def _interpolation(x: float, nodes: np.ndarray) -> np.ndarray:
    """Weights of the values at nodes whose sum is the parabola through the nearest three, at x (Lagrange)."""
    distinct = [int(np.flatnonzero(nodes == node)[0]) for node in np.unique(nodes)]
    nearest = sorted(distinct, key=lambda i: abs(float(nodes[i]) - x))[:NODES]
    weights = np.zeros(len(nodes))
    for i in nearest:
        neighbours = [j for j in nearest if j != i]
        weights[i] = np.prod([(x - nodes[j]) / (nodes[i] - nodes[j]) for j in neighbours])
    return weights


def declared_claim(claim: Claim | ScalingClaim, contrast: Contrast, unit: str) -> DeclaredClaim:
    """Return a claim with its contrast as its study declares it."""
    return DeclaredClaim(
        text=claim.text,
        kind=claim.kind,
        by=claim.by,
        within=claim.within,
        unit=unit,
        terms=tuple(contrast.terms),
        constant=contrast.constant,
        answers=None if claim.answers is None else dict(claim.answers),
    )
