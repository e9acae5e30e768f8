"""Executing a plan: a worker thread a device, each training its share of a group with one compiled program.

Members of a group are mapped with `lax.map`, one after another (bitwise what a lone run gives, on any number of
devices) or `group_size` at a time (`vmap`, for accelerators). Workers run one-device programs rather than one program
sharded over the devices, because XLA's partitioner compiles slightly different arithmetic: the last bits would depend
on the number of devices.
"""

import dataclasses
import queue
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from flaxformer.study.declare import Cell
from flaxformer.study.execution import Execution
from flaxformer.study.plan import Group
from flaxformer.study.program import Program
from flaxformer.study.schedule import Scheduler, Take
from flaxformer.study.store import Row


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


class Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """Raised in a worker at a chunk boundary once `Scheduler.stopping` is set."""


def execute(groups: Sequence[Group], execution: Execution, take: Take | None = None) -> Generator[Event]:
    """Train every cell of the groups; yields what happens, in the caller's thread, as it happens.

    `take` is asked before a group is first handed to a device, in that device's thread: it gives the group with the
    cells that are still to do, or None where there is nothing to do here.

    An exception in a batch makes its cells failed rows, with the traceback, and the rest goes on. Closing the iterator
    (or an exception in the caller) stops the workers at their next chunk.
    """
    scheduler = Scheduler(groups, execution.members, take)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    devices = execution.use_devices()
    with ThreadPoolExecutor(len(devices)) as pool:
        workers = [pool.submit(_work, device, scheduler, execution, events.put) for device in devices]
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


def _work(device: jax.Device, scheduler: Scheduler, execution: Execution, emit: Callable[[Event], None]) -> None:
    """One device's worker: take a batch, compile if its group is new here, train it, say so."""
    program: Program | None = None
    while not scheduler.stopping.is_set():
        task = scheduler.take(device, program.group.name if program else None)
        if task is None:
            return
        group, cells = task

        def report(steps: int, group: Group = group, cells: Sequence[Cell] = cells) -> None:
            emit(Advanced(group.name, len(cells), steps, steps * len(cells) * group.example.tokens_per_step))
            if scheduler.stopping.is_set():
                raise Stopped

        try:
            if program is None or program.group.name != group.name:
                program = None
                program = Program(group, device, execution)
                scheduler.learn(group.name, compile_seconds=program.compile_seconds)
                emit(Compiled(group.name, str(device), program.compile_seconds))
            began = time.perf_counter()
            rows = program.train(cells, report)
            scheduler.learn(group.name, batch_seconds=time.perf_counter() - began)
        except Stopped:
            return
        except Exception as error:
            if program is None:  # it does not compile: no other batch of the group would
                cells = (*cells, *scheduler.abandon(group.name))
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            rows = [{"status": "failed", "cause": cause, "error": traceback.format_exc()} for _ in cells]
        for cell, row in zip(cells, rows, strict=True):
            emit(
                Finished(
                    group.name, {"cell": cell.name, "group": group.name, "seed": cell.seed} | cell.arm.labels | row
                )
            )
