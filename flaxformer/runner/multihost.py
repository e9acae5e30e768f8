"""A study in several processes: all of them train every run together, and only the first reads and writes files.

The first process runs the study as a single process does. It broadcasts to the others each list of groups that it
gives to `execute`, the trials of a group that it takes, and how the study ended.
"""

import dataclasses
from collections.abc import Iterator

import jax

from flaxformer.devices import distributed
from flaxformer.runner.events import Event
from flaxformer.runner.execute import execute, only
from flaxformer.runner.execution import Execution
from flaxformer.runner.stages import check_alone
from flaxformer.study.plan import StudyPlan
from flaxformer.system.errors import UserError

DONE, STOPPED = {"done": ""}, {"stopped": ""}
Broadcast = list[tuple[str, list[str]]] | dict[str, str]
"""The groups to train, each with its trials; or how the study ended."""


def on_all_processes(plan: StudyPlan, execution: Execution, events: Iterator[Event]) -> Iterator[Event]:
    """The events of training a plan, in each of the processes of one job; those of a single process are `events`.

    An exception or an interrupt in one process stops all at their next chunk. Outside of chunks, the coordination
    service of JAX ends the processes that wait for one that has ended.
    """
    if jax.process_count() == 1:
        return events
    check_alone(plan, "runs that several processes share")
    return _coordinator(events) if distributed.is_coordinator() else _follower(plan, execution)


def _coordinator(events: Iterator[Event]) -> Iterator[Event]:
    """The first process's events; the others receive how the study ended."""
    last = STOPPED
    try:
        yield from events
        last = DONE
    except Exception as error:
        last = {"error": str(error)}
        raise
    finally:
        distributed.run_on_coordinator(lambda: last)


def _follower(plan: StudyPlan, execution: Execution) -> Iterator[Event]:
    """Train the groups that the first process broadcasts, until it broadcasts the end.

    Raises:
      UserError: the first process ended with an exception.
      KeyboardInterrupt: it was interrupted.
    """
    whole = {group.name: group for group in plan.groups}
    execution = dataclasses.replace(execution, output=execution.folder(plan.study.name))
    try:
        while isinstance(message := _receive(), list):
            yield from execute([only(whole[name], trials) for name, trials in message], execution)
    except BaseException:
        _receive()  # all have stopped: receive the coordinator's last message
        raise
    if "error" in message:
        raise UserError(f"the first process stopped: {message['error']}")
    if message == STOPPED:
        raise KeyboardInterrupt


def _receive() -> Broadcast:
    """The next message that the first process broadcasts."""
    return distributed.run_on_coordinator(dict)
