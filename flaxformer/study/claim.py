"""A claim: what an author expects of the runs, said before they are made."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from flaxformer.struct import UserError

Labels = dict[str, str]
QUANTITY = "quantity"
"""The one label of what is not an arm: {"quantity": NAME}, measured by a probe or derived from a study's runs."""


@dataclasses.dataclass(frozen=True)
class Contrast:
    """An effect: weights on arms and quantities, and a constant; positive where the claim says so."""

    terms: list[tuple[float, Labels]]
    constant: float = 0.0


@dataclasses.dataclass(frozen=True)
class Claim:
    """The author's expectation, stated before the runs, about a difference that is paired by seed.

    Exactly one of three forms, each between two arms that differ only as they say:

    - `lower=A, than=B`: the metric of A is below that of B, by more than `by`;
    - `higher=A, than=B`: above it, by more than `by`;
    - `equal=A, to=B, within=m`: they differ by less than m either way (tested by TOST).

    A and B are labels of axes, or `{"quantity": NAME}` for a number that the study derives or a probe measures; B may
    be a plain number. `where` fixes other axes; an axis that is not mentioned stays at the baseline. With
    `more_than_where`, the claim is an interaction: the effect under `where` exceeds the effect under `more_than_where`.
    """

    text: str
    _: dataclasses.KW_ONLY
    lower: Labels | None = None
    higher: Labels | None = None
    than: Labels | float | None = None
    equal: Labels | None = None
    to: Labels | float | None = None
    where: Labels = dataclasses.field(default_factory=dict)
    more_than_where: Labels | None = None
    by: float = 0.0
    within: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("lower", "higher", "equal") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UserError(
                f"claim '{self.text}' gives {given or 'none'} of lower, higher, equal; expected exactly one"
            )
        kind = given[0]
        other, wrong = ("to", "than") if kind == "equal" else ("than", "to")
        if getattr(self, other) is None:
            raise UserError(
                f"claim '{self.text}' gives {kind} but not {other}; expected the arm or number to compare with"
            )
        if getattr(self, wrong) is not None:
            raise UserError(f"claim '{self.text}' gives {kind} with {wrong}; expected {other} alone")
        if (kind == "equal") != (self.within is not None):
            raise UserError(f"claim '{self.text}': within (a margin) belongs to equal, and equal needs it")
        if (self.within is not None and self.within <= 0) or self.by < 0:
            raise UserError(
                f"claim '{self.text}' has by {self.by}, within {self.within}; expected by ≥ 0 and within > 0"
            )
        if self.more_than_where is not None and not isinstance(self.second, dict):
            raise UserError(
                f"claim '{self.text}' compares with the number {self.second} under more_than_where; expected an arm"
            )

    @property
    def kind(self) -> Literal["lower", "higher", "equal"]:
        """Which of the three forms it has."""
        return "lower" if self.lower is not None else "higher" if self.higher is not None else "equal"

    @property
    def first(self) -> Labels:
        """Labels of the arm that the claim is about."""
        return {"lower": self.lower, "higher": self.higher, "equal": self.equal}[self.kind]  # type: ignore[return-value]

    @property
    def second(self) -> Labels | float:
        """Labels of the arm, or the number, that it is compared with."""
        return self.to if self.kind == "equal" else self.than  # type: ignore[return-value]

    def contrast(self, complete: Callable[[Labels], Labels]) -> Contrast:
        """The effect; `complete` fills in the labels of an arm."""
        sign = -1.0 if self.kind == "lower" else 1.0
        terms = [(sign, self._named(self.first, self.where, complete))]
        if not isinstance(self.second, dict):
            return Contrast(terms, -sign * self.second)
        terms.append((-sign, self._named(self.second, self.where, complete)))
        if self.more_than_where is not None:
            terms += [
                (-sign, self._named(self.first, self.more_than_where, complete)),
                (sign, self._named(self.second, self.more_than_where, complete)),
            ]
        return Contrast(terms)

    def _named(self, labels: Labels, where: Labels, complete: Callable[[Labels], Any]) -> Labels:
        if QUANTITY not in labels:
            return complete({**where, **labels})
        if len(labels) > 1 or where:
            raise UserError(
                f"claim '{self.text}' gives {labels | where}; expected a quantity alone, which has no other axes"
            )
        return labels
