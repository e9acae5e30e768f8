"""Suites: several benchmarks in one command, within a time, with goals. Imports the standard library only.

>>> benchmark = Suite(
...     question="How fast is this machine?",
...     sections={"products": Section(products, share=1), "training": Section(training, share=4)},
...     goals=[BenchmarkGoal("462,000 tokens/s", "training", "ours", "tokens_per_second", at_least=462_000)],
... )
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from flaxformer.bench.declare import Benchmark, WorkPoint
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError

MINUTES = 10.0
"""Time of a suite, unless the command line has another."""


@dataclasses.dataclass(frozen=True)
class Section:
    """One benchmark of a suite.

    Args:
      benchmark: the benchmark; its rounds are those of the section.
      share: part of the time, relative to the other sections.
    """

    benchmark: Benchmark
    share: float = 1.0

    def __post_init__(self) -> None:
        check_arguments(self)


@dataclasses.dataclass(frozen=True)
class BenchmarkGoal:
    """A number that a way should reach at a point of a section.

    Args:
      words: the goal in one line.
      section: name of the section.
      way: name of the way.
      number: name of the number that counts.
      at_least: the least value, or with `than`, the least ratio.
      point: options by which a point of the section is chosen; the first point that has them counts.
      than: way that `number` is divided by, or "peer" for the fastest peer; "" for none. Of a time, the ratio is
        inverted, so that a ratio above 1 is always faster.
      device: part of the name of the accelerator for which the goal is meant; "" for any.
    """

    words: str
    section: str
    way: str
    number: str
    at_least: float
    point: WorkPoint = dataclasses.field(default_factory=dict)
    than: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        check_arguments(self)


@dataclasses.dataclass(frozen=True)
class GoalResult:
    """Verdict on a goal: the number, if it was measured, or why it was not."""

    goal: BenchmarkGoal
    verdict: Literal["met", "missed", "not measured"]
    value: float | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """Several benchmarks that are measured one after another within a time.

    Args:
      question: the question in one line.
      sections: the benchmarks by name, those that matter most first: what is not measured when the time is over is
        reported as not measured.
      goals: numbers to reach.
      minutes: time for all sections together.
      name: name of the file, filled in when it is read.
    """

    question: str
    sections: Mapping[str, Section]
    goals: Sequence[BenchmarkGoal] = ()
    minutes: float = MINUTES
    name: str = ""

    def __post_init__(self) -> None:
        check_arguments(self)
        for goal in self.goals:
            if goal.section not in self.sections:
                continue  # a suite of some of the sections keeps all goals
            names = [way.name for way in self.sections[goal.section].benchmark.ways]
            for name in (goal.way, goal.than):
                if name not in [*names, "", "peer"]:
                    raise UserError(f"goal '{goal.words}' has way '{name}'; expected one of {names}")

    def select_sections(self, names: Sequence[str]) -> "Suite":
        """Return the suite with these sections alone, in its own order; goals of other sections stay."""
        return dataclasses.replace(
            self, sections={name: self.sections[name] for name in self.sections if name in names}
        )


class Budget:
    """Division of a time among sections by their shares, and of a section's among its processes.

    Time that a section leaves goes to those after it.

    Args:
      seconds: the time in all, from now on.
      shares: share of each section, in order.
      clock: function that returns the time in seconds.
    """

    def __init__(
        self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._end, self._left = clock, clock() + seconds, dict(shares)
        self._section_end = self._end

    def begin(self, section: str) -> None:
        """Begin a section, whose time is its share of what is left."""
        now, total = self._clock(), sum(self._left.values())
        self._section_end = now + max(0.0, self._end - now) * self._left.pop(section) / total

    def seconds(self, processes: int) -> float:
        """Return the time of the next of `processes` processes of the section: half of what is left.

        The last three may take twice an equal part. A process that hangs leaves the rest to the others.
        """
        left = max(0.0, self._section_end - self._clock())
        return min(left, max(left / 2, 2 * left / processes))
