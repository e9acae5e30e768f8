"""Executing a plan: a worker thread a slot, each training its share of a group with one compiled program.

Members of a group are mapped with `lax.map`, one after another (bitwise what a lone run gives, on any number of
devices) or several at a time (`vmap`, for accelerators). A slot is one device, or a mesh of them.
"""

import dataclasses
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from flaxformer.sharding import Devices
from flaxformer.study.declare import Cell
from flaxformer.study.execution import Execution, Slot
from flaxformer.study.fitted import Fitted, failed
from flaxformer.study.plan import Group
from flaxformer.study.program import Stopped
from flaxformer.study.schedule import Scheduler
from flaxformer.study.store import Row
from flaxformer.training.micro_batches import check_batch


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A worker has compiled a group's program."""

    group: str
    device: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Advanced:
    """A worker has trained some members for some steps."""

    group: str
    cells: int
    steps: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Finished:
    """A member is done, or failed: its row of results."""

    group: str
    row: Row


@dataclasses.dataclass(frozen=True)
class Told:
    """Something that the user is to know."""

    text: str


Event = Compiled | Advanced | Finished | Told


def execute(groups: Sequence[Group], execution: Execution) -> Iterator[Event]:
    """Train every cell of the groups; yields what happens, in the caller's thread, as it happens.

    An exception in a batch makes its cells failed rows, with the traceback, and the rest goes on. Closing the iterator
    (or an exception in the caller) stops the workers at their next chunk.
    """
    slots, mesh = execution.slots(), execution.use_mesh()
    for group in groups:
        check_batch(group.example, mesh or Devices())
    scheduler = Scheduler(groups, lambda group: execution.members(group.size, len(slots)))
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(len(slots)) as pool:
        workers = [pool.submit(_work, slot, len(slots), scheduler, execution, events.put) for slot in slots]
        for worker in workers:
            worker.add_done_callback(lambda _: events.put(None))
        try:
            running = len(workers)
            while running:
                event = events.get()
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            scheduler.stopping.set()
    for worker in workers:
        worker.result()


def _work(slot: Slot, slots: int, scheduler: Scheduler, execution: Execution, emit: Callable[[Event], None]) -> None:
    """One slot's worker: take a batch, compile if its group is new here, train it, say so."""
    program: Fitted | None = None
    while not scheduler.stopping.is_set():
        task = scheduler.take(slot, program.group.name if program else None)
        if task is None:
            return
        group, cells = task
        left = list(cells)

        def report(members: int, steps: int, group: Group = group) -> None:
            emit(Advanced(group.name, members, steps, steps * members * group.example.tokens_per_step))
            if scheduler.stopping.is_set():
                raise Stopped

        try:
            if program is None or program.group.name != group.name:
                program = None
                program = Fitted(group, slot, execution, slots, lambda text: emit(Told(text)))
                scheduler.learn(group.name, compile_seconds=program.compile_seconds)
                emit(Compiled(group.name, str(slot), program.compile_seconds))
            began = time.perf_counter()
            for cell, row in program.train(cells, report):
                left.remove(cell)
                emit(Finished(group.name, _identity(group, cell) | row))
            scheduler.learn(group.name, batch_seconds=time.perf_counter() - began)
        except Stopped:
            return
        except Exception as error:  # it does not compile: no other batch of the group would
            program = None
            for cell in (*left, *scheduler.abandon(group.name)):
                emit(Finished(group.name, _identity(group, cell) | failed(error)))


def _identity(group: Group, cell: Cell) -> Row:
    """Which run a row is of."""
    return {"cell": cell.name, "group": group.name, "seed": cell.seed} | cell.arm.labels
