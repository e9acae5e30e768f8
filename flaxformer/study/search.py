"""Points drawn from declared distributions as the levels of an ordinary axis: random and quasi-random search.

>>> axes = [Axis("model.norm", {"pre": PRE, "post": POST}),
...         sample_points({"optimizer.learning_rate": LogUniform(1e-4, 1e-1)}, samples=16)]

A point is a level of the axis, and its label determines its values exactly; planning, running and resuming treat it as
any other level.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from flaxformer.core.canonical import canonical_text
from flaxformer.study.axis import Axis, Number, is_number
from flaxformer.study.combinations import MOST_TRIALS
from flaxformer.study.distributions import Distribution
from flaxformer.system.arguments import check_call
from flaxformer.system.errors import UserError

DIGITS = 4
"""Significant digits of a drawn number; more are used only if two points would coincide or a bound be crossed."""
EXACT_DIGITS = 17
"""Significant digits that represent any float exactly."""
Point = tuple[str, ...]
"""One label per distribution; the labels determine the values."""
Space = Mapping[str | tuple[str, ...], Distribution]
"""One distribution per path, or per tuple of paths that take the same value."""
Method = Literal["sobol", "halton", "random"]


class Points(Axis):
    """An axis whose levels change several fields, each to its own value.

    `Points("norm", {"pre": {"model.norm": PRE, "optimizer.learning_rate": 0.012}, "post": {...}})`. Where a level does
    not name a path of another, it keeps the baseline's value; `{}` is the baseline.
    """

    _changes: Mapping[str, Mapping[str, object]]
    _coordinates: Mapping[str, Mapping[str, Number | str]]

    @check_call
    def __init__(
        self,
        name: str,
        levels: Mapping[str, Mapping[str, object]],
        coordinates: Mapping[str, Mapping[str, Number | str]] | None = None,
    ) -> None:
        paths = tuple(dict.fromkeys(path for changes in levels.values() for path in changes))
        super().__init__(paths or (name,), levels, name)
        object.__setattr__(self, "_changes", levels)
        has_all = all(len(changes) == len(paths) for changes in levels.values())
        object.__setattr__(self, "_coordinates", coordinates or (_coordinates(levels, paths) if has_all else {}))

    def coordinates(self) -> dict[str, dict[str, Number | str]]:
        return {name: dict(values) for name, values in self._coordinates.items()}

    def changes(self, label: str) -> dict[str, object]:
        return dict(self._changes[label])


def _coordinates(
    levels: Mapping[str, Mapping[str, object]], paths: Sequence[str]
) -> dict[str, dict[str, Number | str]]:
    """Coordinates of levels by the last part of each path: numbers as they are, a class by its name, anything else as
    canonical text."""
    names = _names(paths)
    by_name: dict[str, dict[str, Number | str]] = {}
    for path, name in zip(paths, names, strict=True):
        values = {label: changes[path] for label, changes in levels.items()}
        numbers: dict[str, Number | str] = {label: value for label, value in values.items() if is_number(value)}
        is_numeric = len(numbers) == len(values)
        by_name[name] = numbers if is_numeric else {label: _text(value) for label, value in values.items()}
    return by_name


def _text(value: object) -> str:
    """The canonical text of a value; the name of a class, which keeps the fields of each baseline's component."""
    return value.__name__ if isinstance(value, type) else canonical_text(value)


def _names(paths: Sequence[str]) -> list[str]:
    """The last parts of paths where these differ, else the paths."""
    ends = [path.rpartition(".")[2] for path in paths]
    return ends if len(set(ends)) == len(ends) else list(paths)


@check_call
def sample_points(space: Space, samples: int, method: Method = "sobol", seed: int = 0, name: str = "") -> Points:
    """An axis of points drawn from a space.

    More samples of the same space, method and seed begin with the same points, so that a study can be extended.

    Args:
      space: a distribution for each path.
      samples: number of different points.
      method: "sobol" or "halton", quasi-random sequences that fill the space evenly ("sobol" best at powers of two) and
        are shifted by a random vector modulo 1; or "random".
      seed: seed of the shift, or of the draws.
      name: name of the axis; by default the last part of the path if there is one path, else "sample".

    Raises:
      UserError: the space has fewer points than `samples`, or an argument is invalid.
    """
    check_space(space)
    if samples < 1:
        raise UserError(f"samples is {samples}; expected at least 1")
    if samples > MOST_TRIALS:
        raise UserError(f"samples is {samples:,}; expected at most {MOST_TRIALS:,}, the largest number of trials")
    if samples > (most := math.prod(distribution.count for distribution in space.values())):
        raise UserError(f"samples is {samples}; expected at most {most}, which the space has")
    points: dict[Point, tuple[float, ...]] = {}
    for row in itertools.islice(coordinates(method, len(space), seed), 1000 * samples):
        if len(points) == samples:
            break
        drawn = [distribution.draw(u) for distribution, u in zip(space.values(), row, strict=True)]
        if (point := labels_of(drawn, space, points)) is not None:
            points[point] = row
    if len(points) < samples:
        raise UserError(f"samples is {samples}, and 1000 times as many draws gave {len(points)}; expected fewer")
    return axis_of(sorted(points, key=points.__getitem__), space, name)


def check_space(space: Space) -> None:
    """Raise UserError if a space is empty."""
    if not space:
        raise UserError("the space to sample is empty; expected {path: distribution}")


def coordinates(method: Method, dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Yield points of the unit cube without end; quasi-random ones are those of the sequence, shifted modulo 1."""
    if seed < 0:
        raise UserError(f"seed is {seed}; expected a whole number from 0")
    random = np.random.default_rng(seed)
    draw = METHODS[method](dimensions, random)
    while True:
        yield from map(tuple, draw(256).tolist())


Draw = Callable[[int], Float[np.ndarray, "n d"]]


def _random(dimensions: int, random: np.random.Generator) -> Draw:
    return lambda n: random.random((n, dimensions))


def _shift(sequence: str, dimensions: int, random: np.random.Generator) -> Draw:
    """Return a shifted sequence of scipy.stats.qmc, which is imported here because the import takes half a second."""
    from scipy.stats import qmc

    engine, shift = getattr(qmc, sequence)(dimensions, scramble=False), random.random((1, dimensions))
    return lambda n: (engine.random(n) + shift) % 1.0


METHODS: dict[str, Callable[[int, np.random.Generator], Draw]] = {
    "sobol": lambda dimensions, random: _shift("Sobol", dimensions, random),
    "halton": lambda dimensions, random: _shift("Halton", dimensions, random),
    "random": _random,
}


def labels_of(drawn: Sequence[Number | str], space: Space, taken: Collection[Point]) -> Point | None:
    """Return the labels of a drawn point, with the fewest digits that differ from the taken points; None if taken."""
    for digits in range(DIGITS, EXACT_DIGITS + 1):
        point = tuple(
            distribution.label(value, digits) for distribution, value in zip(space.values(), drawn, strict=True)
        )
        held = all(distribution.holds(label) for distribution, label in zip(space.values(), point, strict=True))
        if held and point not in taken:
            return point
    return None


def axis_of(points: Sequence[Point], space: Space, name: str = "") -> Points:
    """Return the axis whose levels are these points."""
    paths = [(path,) if isinstance(path, str) else path for path in space]
    names = _names([path_group[0] for path_group in paths])
    levels: dict[str, dict[str, object]] = {}
    coordinates: dict[str, dict[str, Number | str]] = {name: {} for name in names}
    for point in points:
        label = point[0] if len(point) == 1 else " ".join(f"{n} {text}" for n, text in zip(names, point, strict=True))
        values = [distribution.value(text) for distribution, text in zip(space.values(), point, strict=True)]
        levels[label] = {path: value for path_group, value in zip(paths, values, strict=True) for path in path_group}
        for coordinate, text, value in zip(names, point, values, strict=True):
            coordinates[coordinate][label] = value if is_number(value) else text
    return Points(name or (names[0] if len(names) == 1 else "sample"), levels, coordinates)
