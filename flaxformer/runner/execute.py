"""Execution of planned groups: one worker thread per device group, each training batches of trials of a group.

One compiled program trains the trials of a batch, one at a time (bit for bit as alone, on any number of devices) or
several together (for accelerators). A device group is one device, or a mesh of devices.
"""

import dataclasses
import functools
import queue
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import jax

from flaxformer.devices import distributed
from flaxformer.runner.events import Compiled, Compiling, Event, Finished, Message
from flaxformer.runner.execution import Execution
from flaxformer.runner.kept_weights import Keep
from flaxformer.runner.program import MemoryFittedProgram
from flaxformer.runner.results import failed_row
from flaxformer.runner.schedule import Scheduler, Take
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.interrupts import interrupted, raise_if_interrupted
from flaxformer.system.settings import ProfiledSteps
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.micro_batches import check_batch

SECONDS_BETWEEN_CHECKS = 0.05
"""Time between two checks of the workers that an interrupted study waits for."""


def execute(
    groups: Sequence[ProgramGroup], execution: Execution, take: Take | None = None, keep: Keep | None = None
) -> Generator[Event]:
    """Train every trial of the groups, and yield events in the caller's thread as they happen.

    An exception in a batch gives its trials failed rows, with the traceback, and the others go on. Closing the iterator
    (or an exception in the caller) stops the workers at the end of their chunks. After an interruption by a signal,
    workers that still compile are not waited for.

    Args:
      groups: the trials, by program.
      execution: how to train them.
      take: called once per group before its first batch is trained, in the thread of the device group. Returns the
        group with the trials that this process is to train, or None.
      keep: the weights to keep; None for none.
    """
    device_groups, mesh = execution.device_groups(), execution.use_mesh()
    if mesh is not None:
        for group in groups:
            check_batch(group.example, mesh)
    scheduler = Scheduler(
        groups, lambda group: execution.runs_together(group.size, len(device_groups)), _agree(groups, take)
    )
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(len(device_groups))
    workers = {
        device_group: pool.submit(_work, device_group, len(device_groups), scheduler, execution, keep, events.put)
        for device_group in device_groups
    }
    for worker in workers.values():
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
            raise KeyboardInterrupt("another process was interrupted")
    finally:
        scheduler.stopping.set()
        _wait(workers, scheduler)
        pool.shutdown(wait=False)
    for worker in workers.values():
        worker.result()


def _wait(workers: Mapping[DeviceGroup, Future[None]], scheduler: Scheduler) -> None:
    """Wait until every worker has stopped; after a signal, those that compile have nothing to save and may go on."""
    may_leave = jax.process_count() == 1
    while left := [device_group for device_group, worker in workers.items() if not worker.done()]:
        if may_leave and interrupted.is_set() and scheduler.compiling.issuperset(left):
            return
        wait([workers[device_group] for device_group in left], timeout=SECONDS_BETWEEN_CHECKS)


def _work(
    device_group: DeviceGroup,
    sharing: int,
    scheduler: Scheduler,
    execution: Execution,
    keep: Keep | None,
    emit: Callable[[Event], None],
) -> None:
    """Worker of one device group: take a batch, compile its program if it is another one, train it, emit events."""
    program: MemoryFittedProgram | None = None
    profile: ProfiledSteps | None = None
    while not _stops(scheduler):
        task = scheduler.take(device_group, program.group.name if program else None)
        if task is None:
            return
        group, trials = task
        ended: set[str] = set()
        try:
            if program is None or program.group.name != group.name:
                program = None
                if number := scheduler.first_compilation(group.name):
                    emit(Compiling(group.name, number, scheduler.programs))
                    if number == 1 and execution.profile is not None:
                        profile = ProfiledSteps.parse(execution.profile)
                with scheduler.compiles(device_group):
                    program = MemoryFittedProgram(
                        group, device_group, execution, sharing, lambda text: emit(Message(text)), keep
                    )
                scheduler.learn(group.name, compile_seconds=program.compile_seconds)
                emit(Compiled(group.name, str(device_group), program.compile_seconds))
            began = time.perf_counter()
            for event in program.train(trials, functools.partial(_stops, scheduler), profile):
                if isinstance(event, Finished):
                    ended.add(event.row.trial)
                emit(event)
            profile = None
            scheduler.learn(group.name, batch_seconds=time.perf_counter() - began)
        except Exception as error:  # the program does not compile, for no batch of the group
            program = None
            waiting = [trial for trial in trials if trial.name not in ended] + scheduler.abandon(group.name)
            for trial in waiting:
                emit(Finished(group.name, failed_row(group, trial, error)))


def _stops(scheduler: Scheduler) -> bool:
    """True if this process, or another that trains the same runs, is to stop; all of them call this equally often."""
    stops = bool(distributed.all_reduce_max(int(scheduler.stopping.is_set())))
    if stops:
        scheduler.stopping.set()
    return stops


def _agree(groups: Sequence[ProgramGroup], take: Take | None) -> Take | None:
    """Return `take` as the first process decides it for all; the first process also broadcasts its groups."""
    if jax.process_count() == 1:
        return take
    if distributed.is_coordinator():
        distributed.run_on_coordinator(
            lambda: [[group.name, [trial.name for trial in group.trials]] for group in groups]
        )

    def take_agreed(group: ProgramGroup) -> ProgramGroup | None:
        def names() -> list[str]:
            leased = take(group) if take else group
            return [trial.name for trial in leased.trials] if leased else []

        agreed = only(group, distributed.run_on_coordinator(names))
        return agreed if agreed.trials else None

    return take_agreed


def only(group: ProgramGroup, names: Sequence[str]) -> ProgramGroup:
    """Return the group with the trials of these names."""
    return dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name in set(names)))
