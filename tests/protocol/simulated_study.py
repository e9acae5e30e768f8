"""Workers of a small study whose training is arithmetic, on the package's own launch, store, leases and checkpoints."""

import contextlib
import dataclasses
import functools
import io
from collections import namedtuple
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from protocol.simulated_world import STORE
from study import faults
from study.tiny import INCIDENTAL, NORM, run, tiny

from flaxformer.checkpoint import storage
from flaxformer.runner import launch, partial_runs
from flaxformer.runner.events import Finished, Message
from flaxformer.runner.execution import Execution
from flaxformer.runner.partial_runs import PartialRun, Progress
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import plan
from flaxformer.study.plan import declaration
from flaxformer.study.program_groups import groups

STUDY = tiny(axes=(NORM,), seeds=range(3), claims=())
GROUPS = groups(STUDY.trials())
TRIALS = [trial.name for trial in STUDY.trials()]
CHUNK, STEPS = 3, 6
States = namedtuple("States", "step weight")
jax.tree_util.register_pytree_node(States, lambda states: (tuple(states), None), lambda _, leaves: States(*leaves))


def loss_after(name, step):
    """The loss of a trial after some steps: each depends on the one before."""
    value = faults.number(name)
    for number in range(step):
        value = (value * 1.37 + faults.number(f"{name} {number}")) % 1.0
    return value


def progress_of(name, step, weight):
    evaluations = [{"loss": np.array([weight])} for _ in range(1 + step // CHUNK)]
    return Progress(States(np.array([step]), np.array([weight])), evaluations, [None] * len(evaluations), [])


def train(execution, group, trial, notify):
    """Train one trial in chunks, from its partial run, and return its row; and its partial run."""
    partial = PartialRun(execution.output, group, [trial], 1, execution.save_minutes, notify, dict)
    step, progress = partial.resume(progress_of(trial.name, 0, loss_after(trial.name, 0)))
    while step < STEPS:
        weight = float(progress.states.weight[0])
        for number in range(step, step + CHUNK):
            weight = (weight * 1.37 + faults.number(f"{trial.name} {number}")) % 1.0
        step += CHUNK
        progress = progress_of(trial.name, step, weight)
        progress.losses = [np.zeros((1, step), np.float32)]
        if step < STEPS:
            partial.maybe_save(step, progress)
    loss = float(progress.states.weight[0])
    row = Row(
        trial=trial.name,
        group=group.name,
        seed=trial.seed,
        status="done",
        evaluated_at=[0, STEPS],
        labels=trial.arm.labels,
        metrics={"validation_loss": loss},
        curves={"validation_loss": [9.0, loss]},
    )
    return row, partial


def execute(world, todo, execution, take=None, keep=None):
    """In the place of `runner.execute`: the same calls and events, in the thread of the caller."""
    for given in todo:
        group = take(given) if take else given
        for trial in group.trials if group else ():
            messages = []
            row, partial = train(execution, group, trial, messages.append)
            yield from map(Message, messages)
            if trial.name in world.process.fails:
                row = dataclasses.replace(row, status="failed", cause="no luck", metrics={}, curves={})
            yield Finished(group.name, row)
            partial.remove()


def write_arrays(folder, arrays):
    """In the place of Orbax."""
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        with (folder / name.replace("/", "+")).open("wb") as file:
            file.write(buffer.getvalue())


def read_arrays(folder, names):
    return {name: np.load(io.BytesIO((folder / name.replace("/", "+")).read_bytes())) for name in names}


@functools.cache
def declared():
    return declaration(STUDY)


@contextlib.contextmanager
def patched(world, acknowledge):
    """Within, training is arithmetic; `acknowledge` is called with each row that was stored."""
    append, known = Store.append, declared()

    def appended(store, group, row):
        append(store, group, row)
        acknowledge(row)

    changes = [
        (plan, "declaration", lambda *_: known),
        (plan, "groups", lambda *_: GROUPS),
        (launch, "provenance", faults.provenance),
        (launch, "execute", functools.partial(execute, world)),
        (partial_runs, "identity", lambda trials, _: [trial.name for trial in trials]),
        (storage, "write", write_arrays),
        (storage, "merge", lambda folder: None),
        (storage, "read", read_arrays),
        (Store, "append", appended),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, value in changes:
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def worker(only=None, retry=False, save=True, fails=()):
    """A process that runs the study, or some of its trials."""

    def work(process):
        process.fails = fails
        execution = Execution(output=Path(STORE), devices=1, save_minutes=1e-9 if save else 0.0)
        return list(run(STUDY, execution, only=only, retry_failed=retry))

    return work


def results(rows):
    """Rows without their incidental columns."""
    return {trial: {k: row[k] for k in row if k not in INCIDENTAL} for trial, row in sorted(rows.items())}
