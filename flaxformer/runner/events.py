"""Events of training, of the runs of a study and of a single run."""

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from flaxformer.store.rows import Row
from flaxformer.targets.part_costs import PartCost

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Message:
    """A sentence for the user."""

    text: str


@dataclasses.dataclass(frozen=True)
class Started:
    """A single run starts, or resumes from its checkpoint after this step."""

    step: int


@dataclasses.dataclass(frozen=True)
class Compiling:
    """A group's program is being compiled for the first time: the k-th of n."""

    group: str
    number: int
    programs: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The programs of a group, or of a single run, are compiled for a device group."""

    group: str
    device: str
    seconds: float
    bytes: int | None = None
    """Memory that the largest program of a single run needs on a device; 0 if that is unknown."""


@dataclasses.dataclass(frozen=True)
class FirstLoss:
    """The training loss of a single run at its first step, which `Progressed` reports with the steps of its chunk.

    seconds: time that the chunk took.
    """

    loss: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Progressed:
    """Some trials of a group, or a single run, have made progress."""

    group: str
    trials: int
    steps: int
    tokens: int
    """Tokens read for these steps; 0 for steps that were resumed from disk."""
    step: int = 0
    """Number of steps that each has taken."""
    seconds: float = 0.0
    curves: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    """Metrics of each of these steps, of a single run."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A single run was evaluated; on the test data, once it is trained."""

    step: int
    metrics: Mapping[str, float]
    is_test: bool = False


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The model of a single run generated a text."""

    step: int
    prompt: str
    text: str


@dataclasses.dataclass(frozen=True)
class Diverged:
    """A single run ends, as the loss or a gradient was not finite at this step; the weights are those before it."""

    step: int


@dataclasses.dataclass(frozen=True)
class Profiled:
    """A trace of some steps was written."""

    folder: Path
    first: int
    last: int
    seconds: float
    """Seconds of a step, in the calls of the compiled program."""
    costs: Sequence[PartCost]
    """Costs of a step on each device by part of the model, those of most time first."""
    total: PartCost
    device: str
    """Kind of the devices."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A trial has a row of results, or failed."""

    group: str
    row: Row


Event = (
    Message
    | Started
    | Compiling
    | Compiled
    | FirstLoss
    | Progressed
    | Evaluated
    | Sampled
    | Diverged
    | Profiled
    | Finished
)


class EventsWithResult(Generic[T]):
    """Events of a generator, and what it returns: `result`, once all of them were taken."""

    result: T

    def __init__(self, events: Generator[Event, None, T]) -> None:
        self.events = events

    def __iter__(self) -> Iterator[Event]:
        self.result = yield from self.events
