"""A run of a study has the bits of the same run trained alone, and the diagnostics of its steps.

Programs are compiled like those of a user: with little optimisation, two programs may round differently.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from study.tiny import results, tiny

from flaxformer.core.params import fold_in_name
from flaxformer.diagnostics import diagnose, summary
from flaxformer.runner.events import Finished
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.study.program_groups import groups
from flaxformer.training import evaluate, start, train_chunk

STUDY = tiny()
TRIALS = {trial.name: trial for trial in STUDY.trials()}
GROUPS = groups(STUDY.trials())
GROUP_OF = {trial.name: number for number, group in enumerate(GROUPS) for trial in group.trials}


@functools.cache
def rows_of_group(number, devices):
    """The rows of one group of the study by trial, computed on one device or on two."""
    events = execute([GROUPS[number]], Execution(devices=devices, chunk_steps=3))
    return {event.row.trial: event.row for event in events if isinstance(event, Finished)}


@functools.cache
def initial(name):
    """The state before the first step, as a user would get it."""
    return jax.jit(start)(TRIALS[name].run)


@functools.cache
def alone(name):
    """One run trained alone: start, all steps at once, evaluate."""
    own, source = TRIALS[name].run, TRIALS[name].run.task.load()
    state, metrics = jax.jit(train_chunk, static_argnums=3)(initial(name), own, source, own.training.steps)
    look = jax.jit(evaluate)
    before, after = look(initial(name).params, own, source), look(state.params, own, source)
    numbers = {key: float(value) for key, value in after.items()}
    numbers |= {f"initial_{key}": float(value) for key, value in before.items()}
    return numbers | {"train_loss_curve": metrics["loss"].tolist()}


@pytest.mark.long
@pytest.mark.every(12)
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("name", TRIALS)
def test_a_run_of_a_study_has_the_bits_of_the_run_alone(name, devices):
    row = rows_of_group(GROUP_OF[name], devices)[name]
    assert {key: row[key] for key in alone(name)} == alone(name)


@pytest.mark.slow
def test_diagnostics_are_of_the_next_step_and_change_no_result():
    name = "norm=post,rate=high,seed=1"
    group = dataclasses.replace(GROUPS[GROUP_OF[name]], trials=(TRIALS[name],))
    events = execute([group], Execution(devices=1, chunk_steps=3, diagnostics=True))
    [row] = [event.row for event in events if isinstance(event, Finished)]
    row = dict(row)
    looks = {column: row.pop(column) for column in list(row) if column.startswith("diagnostics/")}
    expected, found = results({name: rows_of_group(GROUP_OF[name], 1)[name]})[name], results({name: row})[name]
    assert {key for key in expected if expected[key] != found.get(key)} == set(), row.get("error")
    run = TRIALS[name].run
    source = run.task.load()
    state, after = initial(name), {0: initial(name)}
    for step in (3, 6):
        state, _ = jax.jit(train_chunk, static_argnums=3)(state, run, source, 3)
        after[step] = state
    for i, step in enumerate((0, 3, 6)):
        batch = source.batch(fold_in_name(jax.random.key(run.seed), "data"), step)
        expected = summary(diagnose(after[step], run, batch))
        assert {f"diagnostics/{key}_curve" for key in expected} == set(looks)
        for key, value in expected.items():
            np.testing.assert_allclose(looks[f"diagnostics/{key}_curve"][i], value, rtol=1e-4, atol=1e-6)
