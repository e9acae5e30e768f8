"""Claims: the results that the author of a study expects, stated before the runs."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal

from flaxformer.store.declaration import QUANTITY, VERDICTS, Labels
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import is_storable
from flaxformer.system.wording import check_text


def arm_name(labels: Labels) -> str:
    """Return the name of an arm from its labels, such as "norm=pre,warmup=none"."""
    return ",".join(f"{axis}={label}" for axis, label in labels.items()) or "baseline"


def check_answers(text: str, answers: Mapping[str, str] | None) -> None:
    """Raise UserError if a claim has answers to the question of the study, and not a printable one per verdict."""
    for verdict, answer in (answers or {}).items():
        check_text(f"claim '{text}' answers['{verdict}']", answer)
    if answers is not None and set(answers) != VERDICTS:
        raise UserError(
            f"claim '{text}' has answers for {', '.join(answers) or 'nothing'}; "
            f"expected one for each of {', '.join(sorted(VERDICTS))}"
        )


@dataclasses.dataclass(frozen=True)
class Contrast:
    """An effect: the weighted sum of arms and quantities plus a constant; positive in the direction of the claim."""

    terms: list[tuple[float, Labels]]
    constant: float = 0.0


@dataclasses.dataclass(frozen=True)
class Claim:
    """An expectation about a difference that is paired by seed.

    It has exactly one of three forms, each a comparison of two arms:

    - `lower=A, than=B`: the metric of A is below that of B, by more than `by`;
    - `higher=A, than=B`: above it, by more than `by`;
    - `equal=A, to=B, within=m`: the two differ by less than m in either direction (tested by TOST).

    A and B are labels of axes, or `{"quantity": NAME}` for a number that the study derives or a probe measures; B may
    be a number. `where` sets other axes for both arms; an axis that is not mentioned has the baseline's label. With
    `more_than_where`, the claim is an interaction: the effect under `where` exceeds the effect under `more_than_where`;
    the report shows both effects.

    `answers` gives the study's question an answer in one sentence for each verdict of this claim, such as {"supported":
    "Yes: …", "refuted": "No: …", "inconclusive": "The study cannot tell whether …"}; the report begins with it.

    `effect` is the size of the effect that the author wants to find; it does not change the test. After `flaxformer
    noise`, `plan` says how many seeds find it with a probability of 80 %, or confirm the margin of an equality.

    Raises:
      UserError: the arguments do not match one form.
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
    answers: Mapping[str, str] | None = None
    effect: float | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        self._check_effect()
        check_text("claim text", self.text)
        for name in ("than", "to", "by", "within"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not is_storable(value):
                shown = value if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
                raise UserError(
                    f"claim '{self.text}' has {name}={shown}; expected a finite number, of at most 64 bits if it is an "
                    "integer"
                )
        forms = [name for name in ("lower", "higher", "equal") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise UserError(
                f"claim '{self.text}' has {' and '.join(forms) or 'none'} of lower, higher, equal; expected exactly one"
            )
        kind = forms[0]
        other, wrong = ("to", "than") if kind == "equal" else ("than", "to")
        if getattr(self, other) is None:
            raise UserError(
                f"claim '{self.text}' has {kind} but not {other}; expected the arm or the number to compare with"
            )
        if getattr(self, wrong) is not None:
            raise UserError(f"claim '{self.text}' has {kind} with {wrong}; expected {kind} with {other}")
        if kind == "equal" and self.within is None:
            raise UserError(f"claim '{self.text}' has equal and no within; expected within=, the margin of equality")
        if kind != "equal" and self.within is not None:
            raise UserError(
                f"claim '{self.text}' has {kind} and within={self.within}; expected by={self.within}, the least "
                f"difference, or equal=A, to=B, within={self.within}"
            )
        if (self.within is not None and self.within <= 0) or self.by < 0:
            raise UserError(
                f"claim '{self.text}' has by {self.by}, within {self.within}; expected by ≥ 0 and within > 0"
            )
        check_answers(self.text, self.answers)
        if self.more_than_where is not None and not isinstance(self.second, dict):
            raise UserError(
                f"claim '{self.text}' has more_than_where and compares with the number {self.second}; expected two arms"
            )

    def _check_effect(self) -> None:
        """Check the effect that the claim wants to find."""
        if self.effect is None:
            return
        if not 0 < self.effect < math.inf:
            raise UserError(f"claim '{self.text}' has effect={self.effect}; expected a number above 0")
        if self.equal is not None:
            raise UserError(
                f"claim '{self.text}' has equal and effect={self.effect}; expected within alone, the margin that its "
                "seeds have to confirm"
            )
        if self.effect <= self.by:
            raise UserError(
                f"claim '{self.text}' has by={self.by} and effect={self.effect}; expected an effect above by"
            )

    @property
    def kind(self) -> Literal["lower", "higher", "equal"]:
        """The form of the claim."""
        return "lower" if self.lower is not None else "higher" if self.higher is not None else "equal"

    @property
    def first(self) -> Labels:
        """Labels of the first arm of the comparison."""
        return next(labels for labels in (self.lower, self.higher, self.equal) if labels is not None)

    @property
    def second(self) -> Labels | float:
        """Labels of the second arm, or the number that the first arm is compared with."""
        return next(other for other in (self.to, self.than) if other is not None)

    def contrast(self, complete: Callable[[Labels], Labels]) -> Contrast:
        """Return the effect of the claim; `complete` adds the labels of the axes that are not mentioned."""
        sign = -1.0 if self.kind == "lower" else 1.0
        terms = [(sign, self._arm(self.first, self.where, complete))]
        if not isinstance(self.second, dict):
            return Contrast(terms, -sign * self.second)
        terms.append((-sign, self._arm(self.second, self.where, complete)))
        if self.more_than_where is not None:
            terms += [
                (-sign, self._arm(self.first, self.more_than_where, complete)),
                (sign, self._arm(self.second, self.more_than_where, complete)),
            ]
        return Contrast(terms)

    def _arm(self, labels: Labels, where: Labels, complete: Callable[[Labels], Labels]) -> Labels:
        if QUANTITY not in labels:
            return complete({**where, **labels})
        if len(labels) > 1 or where:
            raise UserError(
                f"claim '{self.text}' has the labels {labels | where}; expected a quantity without other labels"
            )
        return labels
