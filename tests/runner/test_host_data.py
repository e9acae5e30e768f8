"""Studies on data that stay on the host: every run has the bits that it has with data on the device."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from study.tiny import BASELINE, RATE, results, run, tiny

from flaxformer.cli import remat
from flaxformer.core.paths import replace_at
from flaxformer.data import prepare
from flaxformer.devices.sharding import Devices
from flaxformer.diagnostics import coordinate_check
from flaxformer.runner.execution import Execution
from flaxformer.runner.trial_measurements import load_function, measure_trials
from flaxformer.store.store import Store
from flaxformer.study import Axis, EqualCost, Halving
from flaxformer.study.program_cost import cost_of_run
from flaxformer.system.errors import UserError
from flaxformer.tasks import Domain, EvaluationSet, MaskedTokens, Mixture, MixtureStage, TokenFiles
from flaxformer.tasks.batch import batch_shapes, concat_parts
from flaxformer.tasks.token_files import MappedText

WORDS = ["to be or not to be, ", "that is the question; ", "whether 'tis nobler in the mind "]
FILES = ("one", "two")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder with the prepared texts of two files."""
    root = tmp_path_factory.mktemp("texts")
    for seed, name in enumerate(FILES):
        (root / name).mkdir()
        for number, words in enumerate(np.random.default_rng(seed).choice(WORDS, (60, 5))):
            (root / name / f"{number}.txt").write_text("".join(words))
        prepare(root / name, root / f"{name}.tokens")
    return root


def text(root, name="one", **fields):
    sizes = {"length": 7, "batch_size": 4, "evaluation_batches": 2}
    return TokenFiles(path=str(root / f"{name}.tokens"), **(sizes | fields))


def study_of(task, *axes, evaluations=(), **fields):
    model = BASELINE.model.replace(vocabulary=task.vocabulary, dropout=0.25)
    if isinstance(task, MaskedTokens):
        model = model.replace(mask_pattern="bidirectional")
    baseline = BASELINE.replace(model=model, task=task, evaluations=evaluations)
    return tiny(**({"baseline": baseline, "axes": axes, "claims": (), "seeds": (3, 5)} | fields))


def mixture(root):
    tasks = {name: text(root, name) for name in FILES}
    domains = tuple(Domain(name=name, task=task, weight=1.0) for name, task in tasks.items())
    stages = (MixtureStage(start=4, weights=(1.0, 3.0)),)
    return Mixture(domains=domains, stages=stages, batch_size=4, evaluation_batches=2)


WEIGHT = Axis("task.domains.0.weight", {"1": 1.0, "3": 3.0})
LAYERS = Axis("model.layers", {"1": 1, "2": 2})
COMPUTE = EqualCost("compute", adjust="training.steps", tolerance=0.3)
STUDIES = {
    "text": lambda root: study_of(text(root), Axis("task.path", {name: text(root, name).path for name in FILES}), RATE),
    "mixture": lambda root: study_of(mixture(root), WEIGHT),
    "documents": lambda root: study_of(text(root, pack="documents"), RATE),
    "masked": lambda root: study_of(
        MaskedTokens(text=TokenFiles(path=text(root).path, length=7), batch_size=4, evaluation_batches=2), RATE
    ),
    "evaluations": lambda root: study_of(
        text(root),
        RATE,
        evaluations=(
            EvaluationSet(name="other", task=text(root, "two")),
            EvaluationSet(name="long", task=text(root, "two", length=11)),
        ),
    ),
    "equal compute": lambda root: study_of(text(root), LAYERS, compare=COMPUTE, seeds=[3]),
    "halving": lambda root: study_of(text(root), RATE, halving=Halving(factor=2, first=3)),
}


@pytest.fixture
def keep_on_host(monkeypatch):
    """Function that keeps all texts on the host, or copies them to the device."""
    return lambda on_host: monkeypatch.setattr("flaxformer.tasks.token_files.RESIDENT", 0 if on_host else 2**30)


def rows_of(study, output, **how):
    for _ in run(study, Execution(output=output, **({"devices": 1, "chunk_steps": 2} | how))):
        pass
    rows = Store(output).rows()
    assert {row.error for row in rows.values()} == {None}
    return results(rows)


def both(study, output, keep_on_host, **how):
    """Rows with data on the device, and with data on the host."""
    keep_on_host(False)
    near = rows_of(study, output / "near", **how)
    keep_on_host(True)
    return near, rows_of(study, output / "far", **how)


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("name", STUDIES)
def test_rows_have_the_same_bits(root, tmp_path, keep_on_host, name):
    study = STUDIES[name](root)
    near, far = both(study, tmp_path, keep_on_host)
    assert near == far
    assert len({row["validation_loss"] for row in far.values()}) == len(far) == len(study.trials())
    assert any("test_loss" in row for row in far.values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("text", {"group_size": 4}),
        ("mixture", {"group_size": 4}),
        ("documents", {"diagnostics": True, "group_size": 3}),
        ("documents", {"mesh": Devices(data=2), "devices": 2}),
        ("mixture", {"mesh": Devices(data=2), "devices": 2, "group_size": 2}),
        ("text", {"profile": "2:2"}),
    ],
    ids=str,
)
def test_stacks_and_meshes_have_the_same_numbers(root, tmp_path, keep_on_host, name, how):
    near, far = both(STUDIES[name](root), tmp_path, keep_on_host, **how)
    assert near.keys() == far.keys()
    for trial, row in near.items():
        for column, value in row.items():
            if isinstance(value, float | list):
                np.testing.assert_allclose(far[trial][column], value, rtol=1e-5, atol=1e-7)
            else:
                assert far[trial][column] == value


def test_the_texts_are_on_the_host(root, keep_on_host):
    """So that the other tests compare two ways."""
    keep_on_host(True)
    assert isinstance(text(root).load(), MappedText)
    keep_on_host(False)
    assert not isinstance(text(root).load(), MappedText)


DRIVER = """
import sys
from pathlib import Path
from runner import test_host_data
from flaxformer.runner.events import Progressed
from flaxformer.runner.execution import Execution
from study.tiny import run
from flaxformer.tasks import token_files

token_files.RESIDENT = 0
study = test_host_data.study_to_kill(Path(sys.argv[1]))
for event in run(study, Execution(output=Path(sys.argv[2]), devices=1, chunk_steps=2, save_minutes=1e-9)):
    if isinstance(event, Progressed):
        print(event.step, flush=True)
"""


def study_to_kill(root):
    longer = {"training.steps": 600, "training.evaluate_every": 300}
    baseline = replace_at(STUDIES["documents"](root).baseline, longer)
    return study_of(baseline.task, RATE, baseline=baseline, seeds=[3])


@pytest.mark.slow
def test_a_killed_study_is_resumed_with_the_same_bits(root, tmp_path, keep_on_host):
    tests = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": tests, "JAX_NUM_CPU_DEVICES": str(jax.device_count())}
    command = [sys.executable, "-c", DRIVER, str(root), str(tmp_path / "far")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    steps = [int(process.stdout.readline()) for _ in range(40)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert 0 < steps[-1] < 600
    assert any(path.is_file() for path in (tmp_path / "far" / "unfinished").rglob("*"))
    near, far = both(study_to_kill(root), tmp_path, keep_on_host)
    assert near == far


MEASURES = """
import jax
from flaxformer.training import evaluate

def loss(params, run, data):
    return {"again": evaluate(params, run, data)["validation_loss"]}

def compiled(params, run, data):
    return {"first": jax.jit(lambda data: data.batch(run.data_key, 0).inputs[0, 0])(data)}
"""


@pytest.mark.long
def test_measurements_of_kept_weights_read_the_data(root, tmp_path, keep_on_host):
    keep_on_host(True)
    rows = rows_of(STUDIES["documents"](root), tmp_path / "study", keep="final")
    file = tmp_path / "measures.py"
    file.write_text(MEASURES)
    measured = list(measure_trials(Store(tmp_path / "study"), load_function(file, "loss"), file))
    assert {entry.trial: pytest.approx(entry.values["again"], rel=1e-6) for entry in measured} == {
        trial: row["validation_loss"] for trial, row in rows.items()
    }
    with pytest.raises(UserError, match="TokenFiles: the data stay on the host, where compiled functions cannot read"):
        list(measure_trials(Store(tmp_path / "study"), load_function(file, "compiled"), file))


def cost_of(run):
    cost = cost_of_run(run, timed_steps=1)
    return cost.parameters, cost.flops_per_step, cost.compiled_flops


CALLED_BEFORE_TRAINING = {
    "cost": cost_of,
    "memory by rematerialisation": lambda run: [row[:2] for row in remat.remat_table(run).rows],
    "tracing": lambda run: [
        (x.shape, x.dtype) for x in jax.tree.leaves(jax.eval_shape(concat_parts, batch_shapes(run.task.load())))
    ],
    "coordinate check": lambda run: {
        place: sizes.tolist() for place, sizes in coordinate_check(run, (8, 16), steps=2).sizes.items()
    },
}
"""What commands compute of a run before they train it."""


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("function", CALLED_BEFORE_TRAINING)
def test_what_is_computed_before_training_is_the_same(root, keep_on_host, function):
    run = STUDIES["mixture"](root).baseline
    keep_on_host(False)
    near = CALLED_BEFORE_TRAINING[function](run)
    keep_on_host(True)
    assert CALLED_BEFORE_TRAINING[function](run) == near
