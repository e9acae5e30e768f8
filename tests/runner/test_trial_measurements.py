"""Measurements of kept weights: every trial once, by the code of the function, and never mixed with earlier code."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from study.tiny import RATE, cache_folder, kept_programs, run, tiny

import flaxformer
from flaxformer.cli import main
from flaxformer.runner.execution import Execution
from flaxformer.runner.trial_measurements import WithoutWeights, load_function, measure_trials
from flaxformer.store import trial_measurements
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

STUDY = tiny(axes=(RATE,), claims=(), seeds=(3, 5))
NORM = """
import jax, jax.numpy as jnp

POWER = 2

def measure(params, run):
    total = sum(jnp.sum(jnp.abs(x) ** POWER) for x in jax.tree.leaves(params))
    return {"size": total ** (1 / POWER), "rate_seen": run.optimizer.learning_rate}
"""
DATA = """
from flaxformer.training import evaluate

def loss(params, run, data):
    return {"again": evaluate(params, run, data)["validation_loss"]}
"""


@pytest.fixture(scope="module", autouse=True)
def shared_programs(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("kept")
    for _ in run(STUDY, Execution(output=root, devices=1, keep="all")):
        pass
    return root


@pytest.fixture
def root(template, tmp_path):
    return shutil.copytree(template, tmp_path / "study")


def measured(root, text, name="measure", step=None):
    """Measure with a file of this text; returns what was measured, by trial."""
    file = root.parent / "own.py"
    file.write_text(text)
    events = measure_trials(Store(root), load_function(file, name), file, step)
    return {event.trial: event for event in events if not isinstance(event, WithoutWeights)}


def column(root, name):
    table = flaxformer.results(root).table
    return dict(zip(table["trial"], table[name], strict=True)) if name in table.columns else {}


def norm_of(root, trial, power=2):
    row = next(row for row in flaxformer.results(root).table.iter_rows(named=True) if row["trial"] == trial)
    params, _ = flaxformer.results(root).weights({"rate": row["rate"]}, row["seed"])
    return sum(float((np.abs(np.asarray(x)) ** power).sum()) for x in jax.tree.leaves(params)) ** (1 / power)


@pytest.mark.long
def test_every_trial_is_measured_once_without_training(root):
    found = measured(root, NORM)
    assert len(found) == 4
    sizes = column(root, "size")
    for trial, event in found.items():
        assert sizes[trial] == event.values["size"] == pytest.approx(norm_of(root, trial), rel=1e-5)
        assert event.values["rate_seen"] == pytest.approx({"low": 1e-3, "high": 1e-2}[trial.split(",")[0][5:]])
    assert measured(root, NORM) == {}
    assert measured(root, NORM.replace("POWER = 2", "POWER = 2  # a comment")) == {}


@pytest.mark.long
def test_a_function_of_the_data_gives_the_loss_of_the_row(root):
    measured(root, DATA, "loss")
    rows = column(root, "validation_loss")
    for trial, value in column(root, "again").items():
        assert value == pytest.approx(rows[trial], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("edit", [("POWER = 2", "POWER = 1"), ("jnp.abs(x)", "jnp.abs(2 * x)")])
def test_an_edited_function_measures_again_and_is_not_mixed(root, edit):
    first = measured(root, NORM)
    changed = NORM.replace(*edit)
    file = root.parent / "own.py"
    file.write_text(changed)
    events = measure_trials(Store(root), load_function(file, "measure"), file)
    one = next(events)
    events.close()  # interrupted: the other trials have no number rather than one of the earlier code
    sizes = column(root, "size")
    assert {trial for trial, size in sizes.items() if size is not None} == {one.trial}
    assert len(measured(root, changed)) == 3
    assert column(root, "size") != {trial: event.values["size"] for trial, event in first.items()}
    lines = trial_measurements.read(Store(root))[1]
    assert len({line.measured_by for line in lines}) == 2
    assert len(lines) == 8
    assert measured(root, NORM) == {}  # the earlier code again: its numbers are there
    assert column(root, "size") == {trial: event.values["size"] for trial, event in first.items()}


@pytest.mark.long
def test_a_step_can_be_chosen(root):
    last, first = measured(root, NORM), measured(root, NORM, step=0)
    assert {event.at for event in last.values()} == {6}
    assert {event.at for event in first.values()} == {0}
    assert column(root, "size") == {trial: event.values["size"] for trial, event in first.items()}
    with pytest.raises(UserError, match="has no kept weights at step 5"):
        measured(root, NORM, step=5)


def test_new_trials_and_changed_weights_are_measured(root):
    measured(root, NORM)
    path = root / trial_measurements.NAME
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if b"rate=low,seed=3" not in line]
    path.write_bytes(b"".join(kept))
    assert list(measured(root, NORM)) == ["rate=low,seed=3"]


def test_a_damaged_line_is_not_read(root):
    measured(root, NORM)
    path = root / trial_measurements.NAME
    path.write_bytes(re.sub(rb'"size": \d', b'"size": 9', path.read_bytes(), count=1))
    store = Store(root)
    assert len(trial_measurements.read(store)[1]) == 3
    assert trial_measurements.NAME in store.corrupt_files
    assert len(measured(root, NORM)) == 1


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def measure(params, run):\n    return {'x': params.nothing}\n",
            r"own.py, line 2, in measure: AttributeError",
        ),
        ("def measure(params, run):\n    return {'x': 1 / 0}\n", r"for arm rate=low at seed 3: .*line 2.*ZeroDivision"),
        ("def measure(params, run):\n    return 3\n", "measure returns 3 for arm rate=low at seed 3; expected a dict"),
        ("def measure(params, run):\n    return {'x': 'y'}\n", "measure returns 'x' = 'y'"),
        ("def measure(params, run):\n    return {'seed': 1}\n", "measure returns 'seed', a column of the results"),
        ("def measure(params, run):\n    return {'rate': 1}\n", "measure returns 'rate', a column of the"),
        (
            "def measure(params, run):\n    return {'validation_loss': 1}\n",
            "'validation_loss', a column of the results",
        ),
        ("def measure(params):\n    return {}\n", r"has measure\(params\); expected a file that defines"),
        ("measure = 3\n", r"has measure = 3; expected a file that defines measure\(params, run\)"),
        ("x = 3\n", "has no function 'measure'; expected a file that defines"),
        (
            "import os.path\nfrom shutil import move\ndef mesure(params, run):\n    return {}\n",
            r"has no function 'measure'; it has: mesure \(--function NAME\); expected a file that defines",
        ),
        ("def measure(params, run:\n", "line 1: "),
    ],
)
def test_a_function_that_fails_is_one_message(root, text, message):
    with pytest.raises(UserError, match=message):
        measured(root, text)
    assert trial_measurements.read(Store(root))[1] == []


def test_two_functions_have_columns_of_their_own(root):
    measured(root, NORM)
    other = root.parent / "other.py"
    other.write_text("def measure(params, run):\n    return {'size': 1.0}\n")
    with pytest.raises(UserError, match=r"measure returns 'size', a column of own\.py: measure; expected another name"):
        list(measure_trials(Store(root), load_function(other, "measure"), other))


@pytest.mark.long
def test_a_study_without_weights_is_refused(tmp_path):
    for _ in run(STUDY, Execution(output=tmp_path / "study", devices=1)):
        pass
    with pytest.raises(UserError, match="has no kept weights; expected a study that was run with --keep"):
        measured(tmp_path / "study", NORM)


@pytest.mark.long
def test_the_command_shows_the_columns_in_the_report(root, capsys):
    (root.parent / "own.py").write_text(NORM)
    assert main(["measure", str(root), str(root.parent / "own.py")]) == 0
    shown = capsys.readouterr().out
    assert "4 runs measured" in shown
    assert "exploratory" in shown
    assert "Measured after training" in (root / "report.html").read_text()
    assert "| low | size |" in (root / "results.md").read_text()
    assert main(["measure", str(root), str(root.parent / "own.py")]) == 0
    assert "0 runs measured" in capsys.readouterr().out
    (root.parent / "own.py").write_text("def measure(params, run):\n    raise KeyError('a')\n")
    assert main(["measure", str(root), str(root.parent / "own.py")]) == 2
    assert "in measure: KeyError" in capsys.readouterr().err
    assert main(["measure", str(root), str(root.parent / "nowhere.py")]) == 2
    assert main(["measure", str(root.parent / "nowhere"), str(root.parent / "own.py")]) == 2


def test_the_file_of_measurements_has_the_code_of_each_launch(root):
    measured(root, NORM)
    launch = json.loads((root / trial_measurements.NAME).read_text().splitlines()[0])
    assert launch["kind"] == "launch"
    assert set(launch["code"]) >= {"own.py: measure"}
