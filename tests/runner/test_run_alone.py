"""A run of a study has the bits of the same run trained alone, and the diagnostics of its steps.

Programs are compiled like those of a user: with little optimisation, two programs may round differently.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from study.tiny import NORM, RATE, results, tiny

from flaxformer.diagnostics import diagnose, summary
from flaxformer.params import fold_in_name
from flaxformer.runner.execute import Execution, Finished, execute
from flaxformer.runner.launch import run
from flaxformer.store.store import Store
from flaxformer.study.plan import groups
from flaxformer.training import evaluate, start, train_chunk

STUDY = tiny()
TRIALS = {trial.name: trial for trial in STUDY.trials()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole study's rows, on one device or on two."""

    @functools.cache
    def rows(devices):
        folder = tmp_path_factory.mktemp("whole")
        list(run(STUDY, Execution(output=folder, devices=devices, chunk_steps=3)))
        return Store(folder).rows()

    return rows


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


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("name", TRIALS)
def test_a_run_of_a_study_has_the_bits_of_the_run_alone(whole, name, devices):
    row = whole(devices)[name]
    assert {key: row[key] for key in alone(name)} == alone(name)


@pytest.mark.slow
def test_diagnostics_are_of_the_next_step_and_change_no_result(whole):
    name = "norm=post,rate=high,seed=1"
    study = tiny(axes=(NORM, RATE), claims=())
    [group] = [group for group in groups(study.trials()) if any(trial.name == name for trial in group.trials)]
    group = dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name == name))
    events = execute([group], Execution(devices=1, chunk_steps=3, diagnostics=True))
    [row] = [event.row for event in events if isinstance(event, Finished)]
    row = dict(row)
    looks = {column: row.pop(column) for column in list(row) if column.startswith("diagnostics/")}
    expected, found = results({name: whole(1)[name]})[name], results({name: row})[name]
    expected.pop("fingerprint")  # which the rows of the store have
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
