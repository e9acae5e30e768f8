"""Which device group trains which trials next: compile each group on as few device groups as pays."""

import threading
from collections.abc import Callable, Sequence

from flaxformer.runner.execution import DeviceGroup
from flaxformer.study.declare import Trial
from flaxformer.study.plan import ProgramGroup

Take = Callable[[ProgramGroup], ProgramGroup | None]
"""Asked once before a group is first handed out: the group with the trials that are ours to train, or None."""


class Scheduler:
    """Hands out batches of trials to workers so that each group is compiled on as few device groups as pays."""

    def __init__(
        self, groups: Sequence[ProgramGroup], members: Callable[[ProgramGroup], int], ask: Take | None = None
    ) -> None:
        self._lock, self.stopping = threading.Lock(), threading.Event()
        self._members, self._ask, self._unasked = members, ask, {group.name for group in groups if ask}
        self._left = {group.name: self._batches(group) for group in groups}
        self._groups = {group.name: group for group in groups}
        self._workers: dict[str, set[DeviceGroup]] = {group.name: set() for group in groups}
        self._batch_seconds: dict[str, float] = {}
        self._compile_seconds = 0.0

    def _batches(self, group: ProgramGroup) -> list[tuple[Trial, ...]]:
        members = self._members(group)
        return [group.trials[i : i + members] for i in range(0, len(group.trials), members)]

    def take(self, device_group: DeviceGroup, own: str | None) -> tuple[ProgramGroup, tuple[Trial, ...]] | None:
        """Return the next batch for a device group that has compiled group `own`: of that or the most urgent group."""
        with self._lock:
            while True:
                if own is not None and self._left[own]:
                    name = own
                else:
                    waiting = [name for name, left in self._left.items() if left and self._worth_joining(name)]
                    if not waiting:
                        return None
                    name = max(waiting, key=lambda name: len(self._left[name]) / (1 + len(self._workers[name])))
                if self._is_ours(name):
                    self._workers[name].add(device_group)
                    return self._groups[name], self._left[name].pop(0)

    def _is_ours(self, name: str) -> bool:
        """True if there is something of the group to train here; its trials are then those that there are."""
        if self._ask is not None and name in self._unasked:
            self._unasked.remove(name)
            group = self._ask(self._groups[name])
            self._left[name] = self._batches(group) if group else []
            self._groups[name] = group or self._groups[name]
        return bool(self._left[name])

    def _worth_joining(self, name: str) -> bool:
        """True if what is left, shared with its present workers, outlasts another compilation."""
        if not self._workers[name] or name not in self._batch_seconds:
            return True
        return len(self._left[name]) * self._batch_seconds[name] / len(self._workers[name]) > self._compile_seconds

    def abandon(self, name: str) -> list[Trial]:
        """Remove and return the trials of a group that are still waiting."""
        with self._lock:
            waiting = [trial for batch in self._left[name] for trial in batch]
            self._left[name].clear()
            return waiting

    def learn(self, name: str, compile_seconds: float | None = None, batch_seconds: float | None = None) -> None:
        """Take note of how long things take."""
        with self._lock:
            if compile_seconds is not None:
                self._compile_seconds = compile_seconds
            if batch_seconds is not None:
                self._batch_seconds[name] = batch_seconds
