"""`examples/distillation.py`: a student is taught by the probabilities of a teacher's weights."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer
from flaxformer import cli, replace_at
from flaxformer.study.load import load_study
from flaxformer.system.errors import UserError
from flaxformer.training import evaluate, start
from flaxformer.training.loss import loss

FILE = Path(__file__).parents[2] / "examples" / "distillation.py"
FEW = ["training.steps=4", "training.evaluate_every=2"]


@pytest.fixture
def taught(tmp_path, monkeypatch):
    """The run of an arm with a teacher, in the folder where a teacher was trained for some steps."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILE, "distillation.py")
    assert cli.main(["train", "distillation.py", *FEW, "--output", "runs/teacher"]) == 0
    study = load_study(Path("distillation.py"))
    [run] = [arm.run for arm in study.arms() if arm.labels["learns from"] == "a teacher"]
    return replace_at(run, {"task.batch_size": 3, "task.evaluation_batches": 2})


@pytest.mark.long
def test_the_loss_has_the_divergence_from_the_teacher(taught, tmp_path):
    teacher, source = flaxformer.load("runs/teacher"), taught.task.load()
    batch, params = source.batch(jax.random.key(1), 0), start(taught).params
    value, outcome = loss(params, taught, batch, None)
    student, expected = (np.asarray(z, np.float64) / 2 for z in (outcome.output, teacher.logits(batch.inputs)))
    student, expected = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (student, expected))
    divergence = (np.exp(expected) * (expected - student)).sum(-1).mean()
    plain = replace_at(taught, {"task": taught.task.sized, "loss_terms": ()})
    np.testing.assert_allclose(value, loss(params, plain, batch, None)[0] + 4 * divergence, rtol=1e-5)
    alone = evaluate(params, plain, plain.task.load())
    for name, score in evaluate(params, taught, source).items():
        assert score == alone[name]  # a validation loss without the teacher
    before = taught.task.fingerprint()
    assert cli.main(["train", str(tmp_path / "distillation.py"), *FEW, "seed=1", "--output", "runs/other"]) == 0
    assert taught.task.replace(teacher="runs/other").fingerprint() != before
    with pytest.raises(UserError, match="expected a task Distilled"):
        loss(params, plain.replace(loss_terms=taught.loss_terms), plain.task.load().batch(jax.random.key(1), 0), None)
    wider = taught.replace(model=taught.model.replace(vocabulary=taught.model.vocabulary + 1))
    with pytest.raises(UserError, match="expected the same vocabulary"):
        loss(start(wider).params, wider, batch, None)
    micro = replace_at(taught, {"training.micro_batches": 3})
    state, arrays = start(taught), jax.tree.map(jnp.asarray, taught)
    whole, divided = (flaxformer.train_step(state, run, batch)[1] for run in (arrays, micro))
    np.testing.assert_allclose(whole["gradient_norm"], divided["gradient_norm"], rtol=1e-4)


@pytest.mark.slow
def test_the_study_runs_beside_its_teacher(taught, capsys):
    assert cli.main(["run", "distillation.py", *FEW, "--seeds", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["report", "runs/distillation", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["missing"] == report["failed"] == 0
    assert len(report["arms"]) == 3
