"""Points drawn from declared distributions as the levels of an ordinary axis: random and quasi-random search.

>>> axes = [Axis("model.norm", {"pre": PRE, "post": POST}),
...         sampled({"optimizer.learning_rate": LogUniform(1e-4, 1e-1)}, samples=16)]

Planning, running, resuming and reporting know nothing of it: a point is a level, whose label says its values exactly.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.declare import Axis

DIGITS = 4
"""Significant digits of a drawn number; more only where two points would be one, or a bound would be crossed."""
EXACT_DIGITS = 17
"""Enough for any float."""
Point = tuple[str, ...]
"""A label for each distribution; the labels decide the values."""


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every number from `low` to `high` alike: low + (high − low) · u."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self, lowest=-math.inf)

    count = math.inf

    def draw(self, u: float) -> float:
        """The number at u of its distribution function."""
        return self.low + (self.high - self.low) * u

    def label(self, drawn: float, digits: int) -> str:
        """Return a drawn number with the given count of significant digits."""
        return f"{drawn:.{digits}g}"

    def value(self, label: str) -> float:
        """The number that a label says."""
        return float(label)

    def holds(self, label: str) -> bool:
        """True if a label's number is within the bounds."""
        return self.low <= float(label) <= self.high


@dataclasses.dataclass(frozen=True)
class LogUniform(Uniform):
    """Every order of magnitude from `low` to `high` alike: low · (high / low)^u."""

    def __post_init__(self) -> None:
        _check_ends(self, lowest=0)

    def draw(self, u: float) -> float:
        return self.low * (self.high / self.low) ** u


@dataclasses.dataclass(frozen=True)
class Integer:
    """Every whole number from `low` to `high`, both included, alike."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not all(type(end) is int for end in (self.low, self.high)) or self.low > self.high:
            raise UserError(f"Integer({self.low}, {self.high}); expected two whole numbers, the first not above")

    @property
    def count(self) -> int:
        """Number of values."""
        return self.high - self.low + 1

    def draw(self, u: float) -> int:
        """The number at u of its distribution function."""
        return self.low + int(u * self.count)

    def label(self, drawn: int, digits: int) -> str:
        """Return the label of a drawn value."""
        return str(drawn)

    def value(self, label: str) -> int:
        """The number that a label says."""
        return int(label)

    def holds(self, label: str) -> bool:
        """True if a label's number is within the bounds."""
        return self.low <= int(label) <= self.high


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of some values alike: numbers and text as they are, configs each with a label, as in {"pre": PRE, ...}."""

    values: Mapping[str, Any] | Sequence[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            if not all(isinstance(value, bool | int | float | str) for value in self.values):
                raise UserError(f"Choice is of {self.values}; expected numbers and text, or {{label: value, ...}}")
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
        return list(self.values)

    def draw(self, u: float) -> str:
        """The label at u, in the order in which they are given."""
        return self.labels[int(u * self.count)]

    def label(self, drawn: str, digits: int) -> str:
        """Return the label of a drawn value."""
        return drawn

    def value(self, label: str) -> Any:
        """Return the value of a label."""
        return self.values[label]  # type: ignore[call-overload]

    def holds(self, label: str) -> bool:
        """True if there is such a label."""
        return label in self.values


Distribution = Uniform | Integer | Choice
Space = Mapping[str | tuple[str, ...], Distribution]
"""A distribution for each path, or for several paths that take the same value."""
Method = Literal["sobol", "halton", "random"]


def _check_ends(of: Uniform, lowest: float) -> None:
    ends = (of.low, of.high)
    numbers = all(isinstance(end, int | float) and math.isfinite(end) and end > lowest for end in ends)
    if not numbers or of.low >= of.high:
        above = " above 0" if lowest == 0 else ""
        raise UserError(f"{type(of).__name__}{ends}; expected two numbers{above}, the first below the second")


class Points(Axis):
    """An axis whose levels change several fields, each to a value of its own.

    `Points("norm", {"pre": {"model.norm": PRE, "optimizer.learning_rate": 0.012}, "post": {...}})`; every level names
    the same paths.
    """

    def __init__(self, name: str, levels: Mapping[str, Mapping[str, Any]]) -> None:
        paths = [tuple(changes) for changes in levels.values()]
        for label, own in zip(levels, paths, strict=True):
            if sorted(own) != sorted(paths[0]) or not own:
                raise UserError(f"'{label}' of axis '{name}' changes {list(own)}; expected what all levels change")
        super().__init__(paths[0] if paths else (name,), levels, name)

    def changes(self, label: str) -> dict[str, Any]:
        return dict(self.levels[label])


def sampled(space: Space, samples: int, method: Method = "sobol", seed: int = 0, name: str = "") -> Points:
    """An axis of points drawn from a space.

    More samples of the same space, method and seed begin with the same points, so that a study grows by what is new.

    Args:
      space: a distribution for each path.
      samples: how many points, all different.
      method: "sobol" or "halton" (shifted by a random vector modulo 1; they fill the space evenly, and "sobol" most so
        at powers of two), or "random".
      seed: of the shift, or of the draws.
      name: of the axis; by default the path's last part where there is one path, else "sample".

    Raises:
      UserError: the space has fewer points than asked for, or anything is not what is expected.
    """
    check_space(space)
    if samples < 1:
        raise UserError(f"samples is {samples}; expected at least 1")
    if samples > (most := math.prod(one.count for one in space.values())):
        raise UserError(f"samples is {samples}; expected at most {most}, which the space has")
    points: dict[Point, tuple[float, ...]] = {}
    for row in itertools.islice(coordinates(method, len(space), seed), 1000 * samples):
        if len(points) == samples:
            break
        drawn = [one.draw(u) for one, u in zip(space.values(), row, strict=True)]
        if (point := named(drawn, space, points)) is not None:
            points[point] = row
    if len(points) < samples:
        raise UserError(f"samples is {samples}, and 1000 times as many draws gave {len(points)}; expected fewer")
    return axis_of(sorted(points, key=points.__getitem__), space, name)


def check_space(space: Space) -> None:
    """Refuse a space without distributions, or with anything else in it."""
    if not space:
        raise UserError("the space to sample is empty; expected {path: distribution}")
    for path, one in space.items():
        if not isinstance(one, Distribution):
            raise UserError(f"'{path}' is sampled from {one!r}; expected Uniform, LogUniform, Integer or Choice")


def coordinates(method: Method, dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube without end; quasi-random ones are those of the sequence, shifted modulo 1."""
    if method not in METHODS:
        raise UserError(f"method is '{method}'{did_you_mean(method, list(METHODS))}")
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed is {seed}; expected a whole number from 0")
    random = np.random.default_rng(seed)
    draw = METHODS[method](dimensions, random)
    while True:
        yield from map(tuple, draw(256).tolist())


Draw = Callable[[int], Float[np.ndarray, "n d"]]


def _random(dimensions: int, random: np.random.Generator) -> Draw:
    return lambda n: random.random((n, dimensions))


def _shifted(sequence: str, dimensions: int, random: np.random.Generator) -> Draw:
    """A sequence of scipy.stats.qmc; imported here, for the import takes half a second."""
    from scipy.stats import qmc

    engine, shift = getattr(qmc, sequence)(dimensions, scramble=False), random.random((1, dimensions))
    return lambda n: (engine.random(n) + shift) % 1.0


METHODS: dict[str, Callable[[int, np.random.Generator], Draw]] = {
    "sobol": lambda dimensions, random: _shifted("Sobol", dimensions, random),
    "halton": lambda dimensions, random: _shifted("Halton", dimensions, random),
    "random": _random,
}


def named(drawn: Sequence[Any], space: Space, taken: Collection[Point]) -> Point | None:
    """Return labels of a drawn point, with as few digits as distinguish it from those taken; None if it is taken."""
    for digits in range(DIGITS, EXACT_DIGITS + 1):
        point = tuple(one.label(value, digits) for one, value in zip(space.values(), drawn, strict=True))
        held = all(one.holds(label) for one, label in zip(space.values(), point, strict=True))
        if held and point not in taken:
            return point
    return None


def axis_of(points: Sequence[Point], space: Space, name: str = "") -> Points:
    """The axis whose levels are these points."""
    paths = [(path,) if isinstance(path, str) else path for path in space]
    ends = [own[0].rpartition(".")[2] for own in paths]
    names = ends if len(set(ends)) == len(ends) else [own[0] for own in paths]
    levels = {}
    for point in points:
        said = point[0] if len(point) == 1 else " ".join(f"{n} {label}" for n, label in zip(names, point, strict=True))
        values = [one.value(label) for one, label in zip(space.values(), point, strict=True)]
        levels[said] = {path: value for own, value in zip(paths, values, strict=True) for path in own}
    return Points(name or (names[0] if len(names) == 1 else "sample"), levels)
