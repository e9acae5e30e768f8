"""A tracker of one run: it receives the lines of the log as numbers by name, and may fail without harm."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from flaxformer.jobs.trackers.tracker import TrackedRun, Tracker
from flaxformer.store.job_log import LogLine
from flaxformer.system.user_code.reads import unrecorded
from flaxformer.system.user_code.source import describe

T = TypeVar("T")
LONGEST = 300
"""Characters of an exception that the report of a failure has."""


def values_of(line: LogLine) -> Iterator[tuple[int, Mapping[str, float | str]]]:
    """The numbers and texts of a line by the step after which they were taken."""
    if line["kind"] == "steps":
        lists = {name: numbers for name, numbers in line.items() if isinstance(numbers, list)}
        steps = len(lists["loss"])
        for place in range(steps):
            row = {f"training/{name}": numbers[place] for name, numbers in lists.items()}
            if place == steps - 1:
                row["training/steps_per_second"] = steps / max(line["seconds"], 1e-9)
                row |= {"training/goodput": line["goodput"]} if "goodput" in line else {}
            yield line["step"] - steps + 1 + place, row
    if line["kind"] in ("evaluation", "test"):
        yield line["step"], {f"evaluation/{name}": line[name] for name in line if name not in ("kind", "step")}
    if line["kind"] == "sample":
        yield line["step"], {"sample": line["prompt"] + line["text"]}


class AttachedTracker:
    """A tracker of a run: a failure is reported once, and it is not used again.

    What the user's code reads within it changes no result, and is not recorded for the identity of results.

    Args:
      name: of the tracker, in the report.
      create: returns the tracker.
      run: the run that it starts.
      report: called with a message when it fails.
    """

    def __init__(
        self, name: str, create: Callable[[], Tracker], run: TrackedRun, report: Callable[[str], object]
    ) -> None:
        self._name, self._report = name, report
        self._tracker = self._try(create)
        if self._tracker is not None:
            self._try(functools.partial(self._tracker.start, run))

    def __call__(self, line: LogLine) -> None:
        """Record a line of the log."""
        for step, values in values_of(line):
            if self._tracker is not None:
                self._try(functools.partial(self._tracker.log, step, values))

    def close(self) -> None:
        """Close the tracker; it may be called twice."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            self._try(tracker.close)

    def _try(self, action: Callable[[], T]) -> T | None:
        try:
            with unrecorded():
                return action()
        except Exception as error:
            self._tracker = None
            self._report(
                f"{self._name} has failed and is not used any more ({describe(error)[:LONGEST]}); "
                "training continues, and the output folder has all numbers"
            )
            return None
