"""Search in rounds: Optuna suggests the next points from what the rows on disk say of those before.

Optuna is asked and told, and keeps nothing: no database, no state of a sampler. Every round starts from the points and
scores in the study's folder and a seed of its own, so that a search that was stopped goes on as if it had not been.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from flaxformer.extras import library
from flaxformer.files import write_atomically
from flaxformer.store import records
from flaxformer.store.store import Row, Store, read_lines
from flaxformer.struct import UserError
from flaxformer.study.analysis import score
from flaxformer.study.declare import Study, Trial
from flaxformer.study.halving import Goal, goal_of, mean
from flaxformer.study.search import Choice, Integer, LogUniform, Point, Space, axis_of, check_space, named

FILE = "suggestions.jsonl"
"""In the study's folder: a line for each round, written before the round is trained."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Study):
    """A study whose one axis is suggested, `samples` points a round.

    Args:
      space: a distribution for each path.
      rounds: how many, at most: a round that suggests nothing new is the last.
      samples: points in a round; all of them are trained, at every seed, before the next is suggested.
      search_seed: of the suggestions.
      goal: which way the metric is good; by default higher for validation_accuracy, lower for all else.
      sampler: from a seed to an Optuna sampler; by default TPE.
    """

    space: Space
    rounds: int = 4
    samples: int = 8
    search_seed: int = 0
    goal: Goal | None = None
    sampler: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        check_space(self.space)
        goal_of(self.metric, self.goal)
        for name in ("rounds", "samples"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name} is {value}; expected at least 1")
        for name in ("axes", "claims", "halving", "derive"):
            if value := getattr(self, name):
                raise UserError(f"a Search has {name} {value}; expected none: its one axis is what it suggests")
        super().__post_init__()

    def of(self, points: Sequence[Point]) -> Study:
        """The ordinary study of these points."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Study)}
        return Study(**fields | {"axes": (axis_of(points, self.space),)})


def recorded(search: Search, store: Store) -> list[list[Point]]:
    """The points of every round that is on disk.

    Raises:
      UserError: they are of another space.
    """
    found: list[list[Point]] = []
    for line in read_lines(store.root / FILE):
        points = [tuple(map(str, point)) for point in line.get("points", ())]
        if line.get("paths") != _paths(search.space) or not all(_is_in(point, search.space) for point in points):
            raise UserError(
                f"{store.root / FILE} has points of {line.get('paths')} that are not in the search's space; "
                "expected this space alone: give --output another folder"
            )
        if line.get("round") == len(found):
            found.append(points)
    return found


def record(search: Search, store: Store, number: int, points: Sequence[Point]) -> None:
    """Add a round; it is on the disk when this returns."""
    line = {"round": number, "paths": _paths(search.space), "points": points}
    lines = map(records.line, [*read_lines(store.root / FILE), line])
    store.root.mkdir(parents=True, exist_ok=True)
    write_atomically(store.root / FILE, b"".join(lines))


def _paths(space: Space) -> list[str]:
    return [path if isinstance(path, str) else " ".join(path) for path in space]


def _is_in(point: Point, space: Space) -> bool:
    with contextlib.suppress(ValueError):
        return len(point) == len(space) and all(
            one.holds(label) for one, label in zip(space.values(), point, strict=True)
        )
    return False


def suggest(search: Search, rounds: Sequence[Sequence[Point]], rows: Mapping[str, Row]) -> list[Point]:
    """The next round's points, from the rows of all rounds before; fewer, or none, where points come again."""
    before = [point for points in rounds for point in points]
    told = list(zip(before, _scores(search, before, rows), strict=True)) if before else []
    seed = int(np.random.SeedSequence([search.search_seed, len(rounds)]).generate_state(1)[0])
    taken, new = set(before), []
    with _optuna() as optuna:
        distributions = {
            path: _distribution(optuna, one)
            for path, one in zip(_paths(search.space), search.space.values(), strict=True)
        }
        own = search.sampler or (lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True))
        direction = "minimize" if goal_of(search.metric, search.goal) == "lower" else "maximize"
        study = optuna.create_study(direction=direction, sampler=own(seed))
        for known, value in told:
            study.add_trial(_trial(optuna, search.space, distributions, known, value))
        for _ in range(search.samples):
            drawn = study.ask(distributions).params
            if (point := named([drawn[path] for path in distributions], search.space, taken)) is not None:
                taken.add(point)
                new.append(point)
    return new


def _scores(search: Search, points: Sequence[Point], rows: Mapping[str, Row]) -> list[float]:
    """The metric of each point, averaged over the seeds; NaN where a run failed."""
    arms = search.of(points).arms()
    found = [[rows[Trial(arm, seed).name] for seed in search.seeds] for arm in arms]
    return [mean([None if row["status"] == "failed" else score(row, search.metric) for row in own]) for own in found]


@contextlib.contextmanager
def _optuna() -> Iterator[ModuleType]:
    """Optuna, without its remarks on studies that begin and on what is experimental."""
    optuna = library("optuna", "search", "a Search")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def _distribution(optuna: ModuleType, one: Any) -> Any:
    if isinstance(one, Choice):
        return optuna.distributions.CategoricalDistribution(one.labels)
    if isinstance(one, Integer):
        return optuna.distributions.IntDistribution(one.low, one.high)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=isinstance(one, LogUniform))


def _trial(optuna: ModuleType, space: Space, distributions: Mapping[str, Any], point: Point, value: float) -> Any:
    """Return Optuna's record of a point; a failed one has no value."""
    params = {
        path: label if isinstance(one, Choice) else one.value(label)
        for path, one, label in zip(distributions, space.values(), point, strict=True)
    }
    if np.isnan(value):
        failed = optuna.trial.TrialState.FAIL
        return optuna.trial.create_trial(params=params, distributions=distributions, state=failed)
    return optuna.trial.create_trial(params=params, distributions=distributions, value=value)
