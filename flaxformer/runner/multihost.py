"""A study in several processes: all of them train every run together, and the first alone reads and writes.

The first runs the study as a lone process does. The others are told each list of groups that it hands to `execute`,
which trials of a group it takes, and how the study ended.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from flaxformer import distributed
from flaxformer.runner.execute import StudyEvent, execute, only
from flaxformer.runner.execution import Execution
from flaxformer.struct import UserError
from flaxformer.study.declare import Study
from flaxformer.study.plan import groups

DONE, STOPPED = {"done": ""}, {"stopped": ""}


def on_all_processes(run: Callable[..., Iterator[StudyEvent]]) -> Callable[..., Iterator[StudyEvent]]:
    """Make `run(study, execution, …)` callable by all processes of one job alike; a single process runs it unchanged.

    An exception or an interrupt in one process stops all at their next chunk. Outside of chunks, the coordination
    service of JAX ends the processes that wait for one that has ended.
    """

    @functools.wraps(run)
    def in_every_process(study: Study, execution: Execution, *arguments: Any, **options: Any) -> Iterator[StudyEvent]:
        if jax.process_count() > 1 and not distributed.is_coordinator():
            return _follower(study, execution)
        events = run(study, execution, *arguments, **options)
        return events if jax.process_count() == 1 else _coordinator(events)

    return in_every_process


def _coordinator(events: Iterator[StudyEvent]) -> Iterator[StudyEvent]:
    """The first process's events; the others hear how it ended."""
    last = STOPPED
    try:
        yield from events
        last = DONE
    except Exception as error:
        last = {"error": str(error)}
        raise
    finally:
        distributed.run_on_coordinator(lambda: last)


def _follower(study: Study, execution: Execution) -> Iterator[StudyEvent]:
    """Train what the first process says, until it says that this was all.

    Raises:
      UserError: the first process ended with an exception.
      KeyboardInterrupt: it was interrupted.
    """
    whole = {group.name: group for group in groups(study.trials(), study.measure, study.file)}
    execution = dataclasses.replace(execution, output=execution.folder(study.name))
    try:
        while isinstance(word := distributed.run_on_coordinator(_nothing), list):
            yield from execute([only(whole[name], trials) for name, trials in word], execution)
    except BaseException:
        distributed.run_on_coordinator(_nothing)  # all have stopped: receive the coordinator's last message
        raise
    if "error" in word:
        raise UserError(f"the first process stopped: {word['error']}")
    if word == STOPPED:
        raise KeyboardInterrupt


def _nothing() -> None:
    """Do nothing: the counterpart of a message that only the first process sends."""
