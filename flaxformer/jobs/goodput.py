"""Goodput: the share of a launch's wall time that was spent in training steps.

    goodput = seconds in training steps / seconds since the launch

The seconds in training steps are those of the calls of the compiled program, which the log has. All other time is that
of something else: starting (loading data, restoring a checkpoint, the initial weights), compiling, evaluation, samples,
profiling, and saving, which has all that is between two of these. Time counts from the call of `train`.

A job of several launches has the sum of the seconds in steps over the sum of all their time. A launch that resumes
from an earlier step trains some steps again, and the log drops those of the launch before: the time that they took is
in the sum of all time (`store.job_log.wall_seconds`), and not in that of the steps. Time between launches does not
count, nor what a launch that was killed did after its last line.
"""

import time

from flaxformer.runner.events import Evaluated, Event, FirstLoss, Profiled, Progressed, Sampled
from flaxformer.store.job_log import SPENT
from flaxformer.system.digests import JsonObject


class WallTime:
    """Wall time of a launch by what it was spent on; every second belongs to one of `store.job_log.SPENT`."""

    def __init__(self) -> None:
        self._counted = time.monotonic()
        self.seconds = dict.fromkeys(SPENT, 0.0)

    def spend(self, kind: str, most: float | None = None) -> None:
        """Count the time since the last call for a kind; beyond `most` seconds, for saving."""
        now = time.monotonic()
        passed, self._counted = now - self._counted, now
        counted = passed if most is None else min(passed, most)
        self.seconds[kind] += counted
        self.seconds["saving"] += passed - counted

    def add(self, event: Event) -> None:
        """Count the time since the last call for what an event ends."""
        match event:
            case FirstLoss():
                self.spend("steps")
            case Progressed(seconds=seconds):
                self.spend("steps", seconds)
            case Evaluated():
                self.spend("evaluation")
            case Sampled():
                self.spend("samples")
            case Profiled():
                self.spend("profiling")

    @property
    def fields(self) -> JsonObject:
        """Seconds so far and the goodput, as fields of a line of the log."""
        elapsed = sum(self.seconds.values())
        return {"elapsed": elapsed, "goodput": self.seconds["steps"] / max(elapsed, 1e-9)}
