"""Which slot trains which cells next: compile each group on as few of them as pays."""

import threading
from collections.abc import Callable, Sequence

from flaxformer.study.declare import Cell
from flaxformer.study.execution import Slot
from flaxformer.study.plan import Group


class Scheduler:
    """Hands out batches of at most `members` of its cells to workers, each group to as few slots as pays."""

    def __init__(self, groups: Sequence[Group], members: Callable[[Group], int]) -> None:
        self._lock, self.stopping = threading.Lock(), threading.Event()
        self._left = {
            group.name: [group.cells[i : i + n] for i in range(0, len(group.cells), n)]
            for group in groups
            for n in [members(group)]
        }
        self._groups = {group.name: group for group in groups}
        self._workers: dict[str, set[Slot]] = {group.name: set() for group in groups}
        self._batch_seconds: dict[str, float] = {}
        self._compile_seconds = 0.0

    def take(self, slot: Slot, own: str | None) -> tuple[Group, tuple[Cell, ...]] | None:
        """The next batch for a slot that has compiled group `own`: of that group, or of the one most in need."""
        with self._lock:
            if own is not None and self._left[own]:
                name = own
            else:
                waiting = [name for name, left in self._left.items() if left and self._worth_joining(name)]
                if not waiting:
                    return None
                name = max(waiting, key=lambda name: len(self._left[name]) / (1 + len(self._workers[name])))
            self._workers[name].add(slot)
            return self._groups[name], self._left[name].pop(0)

    def _worth_joining(self, name: str) -> bool:
        """Whether what is left, shared with its present workers, outlasts another compilation."""
        if not self._workers[name] or name not in self._batch_seconds:
            return True
        return len(self._left[name]) * self._batch_seconds[name] / len(self._workers[name]) > self._compile_seconds

    def abandon(self, name: str) -> list[Cell]:
        """Every cell of a group that is still waiting; nobody gets them any more."""
        with self._lock:
            waiting = [cell for batch in self._left[name] for cell in batch]
            self._left[name].clear()
            return waiting

    def learn(self, name: str, compile_seconds: float | None = None, batch_seconds: float | None = None) -> None:
        """Take note of how long things take."""
        with self._lock:
            if compile_seconds is not None:
                self._compile_seconds = compile_seconds
            if batch_seconds is not None:
                self._batch_seconds[name] = batch_seconds
