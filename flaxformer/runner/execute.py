"""Executing a plan: one worker thread per device group, each training its share of a group with one compiled program.

Members of a group are mapped with `lax.map`, one after another (bitwise what a lone run gives, on any number of
devices) or several at a time (`vmap`, for accelerators). A device group is one device, or a mesh of them.
"""

import dataclasses
import queue
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from flaxformer import distributed
from flaxformer.interrupts import raise_if_interrupted
from flaxformer.runner.execution import DeviceGroup, Execution
from flaxformer.runner.memory_fit import MemoryFittedProgram, failed
from flaxformer.runner.program import Stopped
from flaxformer.runner.schedule import Scheduler, Take
from flaxformer.store.store import Row
from flaxformer.study.declare import Trial
from flaxformer.study.plan import ProgramGroup
from flaxformer.training.micro_batches import check_batch


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A worker has compiled a group's program."""

    group: str
    device: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Progressed:
    """Some members are further by some steps."""

    group: str
    trials: int
    steps: int
    tokens: int
    """Read for it here: none where they were found to be so far."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A member is done, or failed: its row of results."""

    group: str
    row: Row


@dataclasses.dataclass(frozen=True)
class Message:
    """Something that the user is to know."""

    text: str


StudyEvent = Compiled | Progressed | Finished | Message


def execute(groups: Sequence[ProgramGroup], execution: Execution, take: Take | None = None) -> Generator[StudyEvent]:
    """Train every trial of the groups; yields what happens, in the caller's thread, as it happens.

    `take` is asked before a group is first handed to a device, in that device's thread: it gives the group with the
    trials that are still to do, or None where there is nothing to do here.

    An exception in a batch makes its trials failed rows, with the traceback, and the rest goes on. Closing the iterator
    (or an exception in the caller) stops the workers at their next chunk.
    """
    device_groups, mesh = execution.device_groups(), execution.use_mesh()
    if mesh is not None:
        for group in groups:
            check_batch(group.example, mesh)
    scheduler = Scheduler(
        groups, lambda group: execution.members(group.size, len(device_groups)), _agreed(groups, take)
    )
    events: queue.SimpleQueue[StudyEvent | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(len(device_groups)) as pool:
        workers = [
            pool.submit(_work, device_group, len(device_groups), scheduler, execution, events.put)
            for device_group in device_groups
        ]
        for worker in workers:
            worker.add_done_callback(lambda _: events.put(None))
        try:
            running = len(workers)
            while running:
                event = events.get()
                raise_if_interrupted()
                if event is None:
                    running -= 1
                else:
                    yield event
            if scheduler.stopping.is_set() and distributed.is_coordinator():
                raise KeyboardInterrupt("another process was told to stop")
        finally:
            scheduler.stopping.set()
    for worker in workers:
        worker.result()


def _work(
    device_group: DeviceGroup,
    device_groups: int,
    scheduler: Scheduler,
    execution: Execution,
    emit: Callable[[StudyEvent], None],
) -> None:
    """One device group's worker: take a batch, compile if its group is new here, train it, say so."""
    program: MemoryFittedProgram | None = None
    while not _stops(scheduler):
        task = scheduler.take(device_group, program.group.name if program else None)
        if task is None:
            return
        group, trials = task
        left = list(trials)

        def report(members: int, steps: int, trained: int, group: ProgramGroup = group) -> None:
            emit(Progressed(group.name, members, steps, trained * members * group.example.tokens_per_step))
            if _stops(scheduler):
                raise Stopped

        try:
            if program is None or program.group.name != group.name:
                program = None
                program = MemoryFittedProgram(
                    group, device_group, execution, device_groups, lambda text: emit(Message(text))
                )
                scheduler.learn(group.name, compile_seconds=program.compile_seconds)
                emit(Compiled(group.name, str(device_group), program.compile_seconds))
            began = time.perf_counter()
            for trial, row in program.train(trials, report):
                left.remove(trial)
                emit(Finished(group.name, _identity(group, trial) | row))
            scheduler.learn(group.name, batch_seconds=time.perf_counter() - began)
        except Stopped:
            return
        except Exception as error:  # it does not compile: no other batch of the group would
            program = None
            for trial in (*left, *scheduler.abandon(group.name)):
                emit(Finished(group.name, _identity(group, trial) | failed(error)))


def _stops(scheduler: Scheduler) -> bool:
    """True if this process is to stop, or another that trains the same; all of them ask at the same places."""
    stops = bool(distributed.all_reduce_max(int(scheduler.stopping.is_set())))
    if stops:
        scheduler.stopping.set()
    return stops


def _agreed(groups: Sequence[ProgramGroup], take: Take | None) -> Take | None:
    """Return `take` as the first of several processes decides it; the first broadcasts its groups to the others."""
    if jax.process_count() == 1:
        return take
    if distributed.is_coordinator():
        distributed.run_on_coordinator(
            lambda: [[group.name, [trial.name for trial in group.trials]] for group in groups]
        )

    def taken(group: ProgramGroup) -> ProgramGroup | None:
        def names() -> list[str]:
            own = take(group) if take else group
            return [trial.name for trial in own.trials] if own else []

        own = only(group, distributed.run_on_coordinator(names))
        return own if own.trials else None

    return taken


def only(group: ProgramGroup, names: Sequence[str]) -> ProgramGroup:
    """The group with the trials of these names alone."""
    return dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name in set(names)))


def _identity(group: ProgramGroup, trial: Trial) -> Row:
    """Which run a row is of."""
    return {"trial": trial.name, "group": group.name, "seed": trial.seed} | trial.arm.labels
