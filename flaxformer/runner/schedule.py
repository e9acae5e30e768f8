"""Schedule of a study: the next batch of trials for each device group, with few compilations per group."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from flaxformer.study.arm import Trial
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.training.device_group import DeviceGroup

Take = Callable[[ProgramGroup], ProgramGroup | None]
"""Returns a group with the trials that this process is to train, or None; called before its first batch."""


class Scheduler:
    """Gives batches of trials to workers; a further device group compiles a program only if that saves time.

    Args:
      groups: the trials, by program.
      runs_together: number of trials of a batch of a group.
      take: see `Take`; None to train all trials.
    """

    def __init__(
        self, groups: Sequence[ProgramGroup], runs_together: Callable[[ProgramGroup], int], take: Take | None = None
    ) -> None:
        self._lock, self.stopping = threading.Lock(), threading.Event()
        self.compiling: set[DeviceGroup] = set()
        """Device groups whose workers compile a program."""
        self._runs_together, self._take = runs_together, take
        self._not_taken = {group.name for group in groups if take}
        self._left = {group.name: self._batches(group) for group in groups}
        self._groups = {group.name: group for group in groups}
        self._workers: dict[str, set[DeviceGroup]] = {group.name: set() for group in groups}
        self._compiled: list[str] = []
        self._batch_seconds: dict[str, float] = {}
        self._compile_seconds = 0.0

    def _batches(self, group: ProgramGroup) -> list[tuple[Trial, ...]]:
        size = self._runs_together(group)
        return [group.trials[i : i + size] for i in range(0, len(group.trials), size)]

    def take(self, device_group: DeviceGroup, compiled: str | None) -> tuple[ProgramGroup, tuple[Trial, ...]] | None:
        """Return the next batch for a device group: of the group that it has compiled, or of the most urgent group."""
        with self._lock:
            while True:
                if compiled is not None and self._left[compiled]:
                    name = compiled
                else:
                    waiting = [name for name, left in self._left.items() if left and self._worth_joining(name)]
                    if not waiting:
                        return None
                    name = max(waiting, key=lambda name: len(self._left[name]) / (1 + len(self._workers[name])))
                if self._is_ours(name):
                    self._workers[name].add(device_group)
                    return self._groups[name], self._left[name].pop(0)

    def _is_ours(self, name: str) -> bool:
        """True if this process has trials of the group to train; calls `take` for a group that was not taken yet."""
        if self._take is not None and name in self._not_taken:
            self._not_taken.remove(name)
            group = self._take(self._groups[name])
            self._left[name] = self._batches(group) if group else []
            self._groups[name] = group or self._groups[name]
        return bool(self._left[name])

    def _worth_joining(self, name: str) -> bool:
        """True if the remaining batches take the group's present workers longer than another compilation takes."""
        if not self._workers[name] or name not in self._batch_seconds:
            return True
        return len(self._left[name]) * self._batch_seconds[name] / len(self._workers[name]) > self._compile_seconds

    @property
    def programs(self) -> int:
        """Number of groups, each of which is one program."""
        return len(self._groups)

    def first_compilation(self, name: str) -> int | None:
        """Return a group's place in the order of compilation, from 1; None where another device has begun it."""
        with self._lock:
            if name in self._compiled:
                return None
            self._compiled.append(name)
            return len(self._compiled)

    @contextlib.contextmanager
    def compiles(self, device_group: DeviceGroup) -> Iterator[None]:
        """Note that a device group's worker compiles, inside the `with` block."""
        self.compiling.add(device_group)
        try:
            yield
        finally:
            self.compiling.discard(device_group)

    def abandon(self, name: str) -> list[Trial]:
        """Remove and return the trials of a group that are still waiting."""
        with self._lock:
            waiting = [trial for batch in self._left[name] for trial in batch]
            self._left[name].clear()
            return waiting

    def learn(self, name: str, compile_seconds: float | None = None, batch_seconds: float | None = None) -> None:
        """Record measured times, by which later batches are scheduled."""
        with self._lock:
            if compile_seconds is not None:
                self._compile_seconds = compile_seconds
            if batch_seconds is not None:
                self._batch_seconds[name] = batch_seconds
