"""Search in rounds: Optuna suggests the next points from the scores of the earlier points.

Optuna keeps no state between rounds, neither a database nor a sampler: each round starts from the points and scores in
the study's folder and from a seed of its own. A search that was interrupted therefore continues with the same points.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from flaxformer.store.line_forms import SUGGESTIONS
from flaxformer.store.rows import Row
from flaxformer.store.store import Store, read_lines
from flaxformer.study.arm import Trial
from flaxformer.study.declare import Study
from flaxformer.study.distributions import Choice, Distribution, Integer, LogUniform
from flaxformer.study.divergence import is_test_metric, mean_score, on_validation
from flaxformer.study.halving import goal_of
from flaxformer.study.search import (
    Point,
    Space,
    axis_of,
    check_space,
    labels_of,
)
from flaxformer.system import digests
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.files import make_folder, write_atomically

if TYPE_CHECKING:  # optuna is an optional dependency
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

FILE = SUGGESTIONS
"""File in the study's folder with a line per round, written before the round is trained."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Study):
    """A study whose single axis is suggested by Optuna, `samples` points per round.

    Args:
      space: a distribution for each path.
      rounds: largest number of rounds; a round without new points is the last.
      samples: number of points per round; all are trained, at every seed, before the next round is suggested.
      search_seed: seed of the suggestions.
      sampler: function of a seed that returns an Optuna sampler; by default TPE.
    """

    space: Space
    rounds: int = 4
    samples: int = 8
    search_seed: int = 0
    sampler: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_space(self.space)
        for name in ("rounds", "samples"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name} is {value}; expected at least 1")
        for name in ("axes", "claims", "halving", "derive"):
            if value := getattr(self, name):
                raise UserError(f"a Search has {name} {value}; expected none: its one axis has the suggested points")
        if is_test_metric(self.metric):
            expected = on_validation(self.metric)
            raise UserError(f"metric is '{self.metric}', and a Search chooses points by it; expected {expected}")
        super().__post_init__()

    def of(self, points: Sequence[Point]) -> Study:
        """Return the ordinary study of these points."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Study)}
        return Study(**fields | {"axes": (axis_of(points, self.space),)})


def read_rounds(search: Search, store: Store) -> list[list[Point]]:
    """Return the points of every round on disk.

    Raises:
      UserError: the points are of another space.
    """
    rounds: list[list[Point]] = []
    for line in read_lines(store.root / FILE):
        points = [tuple(point) for point in line["points"]]
        if line["paths"] != _paths(search.space) or not all(_is_in(point, search.space) for point in points):
            raise UserError(
                f"{store.root / FILE} has points of {line['paths']} that are not in the search's space; "
                "expected this space alone: give --output another folder"
            )
        if line["round"] == len(rounds):
            rounds.append(points)
    return rounds


def append_round(search: Search, store: Store, number: int, points: Sequence[Point]) -> None:
    """Write a round to disk; it is there when the function returns."""
    line = {"round": number, "paths": _paths(search.space), "points": points}
    lines = map(digests.line, [*read_lines(store.root / FILE), line])
    make_folder(store.root)
    write_atomically(store.root / FILE, b"".join(lines))


def _paths(space: Space) -> list[str]:
    return [path if isinstance(path, str) else " ".join(path) for path in space]


def _is_in(point: Point, space: Space) -> bool:
    with contextlib.suppress(ValueError):
        return len(point) == len(space) and all(
            distribution.holds(label) for distribution, label in zip(space.values(), point, strict=True)
        )
    return False


def suggest(search: Search, rounds: Sequence[Sequence[Point]], rows: Mapping[str, Row]) -> list[Point]:
    """Return the points of the next round from the rows of the earlier rounds; fewer, or none, if points repeat."""
    before = [point for points in rounds for point in points]
    scored = list(zip(before, _scores(search, before, rows), strict=True)) if before else []
    seed = int(np.random.SeedSequence([search.search_seed, len(rounds)]).generate_state(1)[0])
    taken, new = set(before), []
    with _optuna() as optuna:
        distributions = {
            path: _distribution(optuna, distribution)
            for path, distribution in zip(_paths(search.space), search.space.values(), strict=True)
        }
        make_sampler = search.sampler or (lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True))
        direction = "minimize" if goal_of(search.metric, search.goal) == "lower" else "maximize"
        study = optuna.create_study(direction=direction, sampler=make_sampler(seed))
        for known, value in scored:
            study.add_trial(_trial(optuna, search.space, distributions, known, value))
        for _ in range(search.samples):
            drawn = study.ask(distributions).params
            if (point := labels_of([drawn[path] for path in distributions], search.space, taken)) is not None:
                taken.add(point)
                new.append(point)
    return new


def _scores(search: Search, points: Sequence[Point], rows: Mapping[str, Row]) -> list[float]:
    """Return the metric of each point, averaged over the seeds; NaN if a run failed or has no score."""
    arms = search.of(points).arms()
    return [mean_score([rows[Trial(arm, seed).name] for seed in search.seeds], search.metric) for arm in arms]


@contextlib.contextmanager
def _optuna() -> Iterator[ModuleType]:
    """Import Optuna, and silence its messages and its warnings of experimental features."""
    optuna = library("optuna", "search", "a Search")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def _distribution(optuna: ModuleType, distribution: Distribution) -> "BaseDistribution":
    if isinstance(distribution, Choice):
        return optuna.distributions.CategoricalDistribution(distribution.labels)
    if isinstance(distribution, Integer):
        return optuna.distributions.IntDistribution(distribution.low, distribution.high)
    return optuna.distributions.FloatDistribution(
        distribution.low, distribution.high, log=isinstance(distribution, LogUniform)
    )


def _trial(
    optuna: ModuleType, space: Space, distributions: "Mapping[str, BaseDistribution]", point: Point, value: float
) -> "FrozenTrial":
    """Return the Optuna trial of a point; a failed one has no value."""
    params = {
        path: label if isinstance(distribution, Choice) else distribution.value(label)
        for path, distribution, label in zip(distributions, space.values(), point, strict=True)
    }
    if np.isnan(value):
        failed = optuna.trial.TrialState.FAIL
        return optuna.trial.create_trial(params=params, distributions=distributions, state=failed)
    return optuna.trial.create_trial(params=params, distributions=distributions, value=value)
