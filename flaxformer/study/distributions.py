"""Distributions of a search, each given by its inverse cumulative distribution function."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from flaxformer.study.axis import Number
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform distribution from `low` to `high`: low + (high − low) · u."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_arguments(self)
        _check_ends(self, lowest=-math.inf)

    count = math.inf

    def draw(self, u: float) -> float:
        """Return the number whose cumulative probability is u."""
        return self.low + (self.high - self.low) * u

    def label(self, drawn: Number | str, digits: int) -> str:
        """Return the label of a drawn number, with so many significant digits."""
        return f"{drawn:.{digits}g}"

    def value(self, label: str) -> float:
        """Return the number of a label."""
        return float(label)

    def holds(self, label: str) -> bool:
        """True if the number of a label is within the bounds."""
        return self.low <= float(label) <= self.high


@dataclasses.dataclass(frozen=True)
class LogUniform(Uniform):
    """Log-uniform distribution from `low` to `high`: low · (high / low)^u."""

    def __post_init__(self) -> None:
        check_arguments(self)
        _check_ends(self, lowest=0)

    def draw(self, u: float) -> float:
        return self.low * (self.high / self.low) ** u


@dataclasses.dataclass(frozen=True)
class Integer:
    """Uniform distribution over the integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.low > self.high:
            raise UserError(f"Integer({self.low}, {self.high}); expected two whole numbers, the first not above")

    @property
    def count(self) -> int:
        """Number of values."""
        return self.high - self.low + 1

    def draw(self, u: float) -> int:
        """Return the number whose cumulative probability is u."""
        return self.low + int(u * self.count)

    def label(self, drawn: Number | str, digits: int) -> str:
        """Return the label of a drawn value."""
        return str(drawn)

    def value(self, label: str) -> int:
        """Return the number of a label."""
        return int(label)

    def holds(self, label: str) -> bool:
        """True if the number of a label is within the bounds."""
        return self.low <= int(label) <= self.high


@dataclasses.dataclass(frozen=True)
class Choice:
    """Uniform distribution over values: a list of numbers and texts, or {label: value} such as {"pre": PRE, ...}."""

    values: Mapping[str, object] | Sequence[Number | bool | str]

    def __post_init__(self) -> None:
        check_arguments(self)
        if not isinstance(self.values, Mapping):
            object.__setattr__(self, "values", {str(value): value for value in self.values})
        if not self.values:
            raise UserError("Choice has no values; expected at least one")

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def labels(self) -> list[str]:
        """Labels of the values."""
        return list(self._by_label)

    def draw(self, u: float) -> str:
        """Return the label at the cumulative probability u, in the given order."""
        return self.labels[int(u * self.count)]

    def label(self, drawn: Number | str, digits: int) -> str:
        """Return the label of a drawn value."""
        return str(drawn)

    def value(self, label: str) -> object:
        """Return the value of a label."""
        return self._by_label[label]

    @property
    def _by_label(self) -> Mapping[str, object]:
        assert isinstance(self.values, Mapping)  # a list was replaced when the object was made
        return self.values

    def holds(self, label: str) -> bool:
        """True if there is such a label."""
        return label in self.values


def _check_ends(of: Uniform, lowest: float) -> None:
    ends = (of.low, of.high)
    numbers = all(math.isfinite(end) and end > lowest for end in ends)
    if not numbers or of.low >= of.high:
        above = " above 0" if lowest == 0 else ""
        raise UserError(f"{type(of).__name__}{ends}; expected two numbers{above}, the first below the second")


Distribution = Uniform | Integer | Choice
