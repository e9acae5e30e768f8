"""`flaxformer replicate`: the copy of the study at fresh seeds, both results side by side."""

import pytest
from study.tiny import cache_folder, kept_programs

from flaxformer.cli import main
from flaxformer.store.store import Store

FILE = """
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

study = Study(
    name="small",
    question="Does the rate matter?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=4, evaluate_every=2),
    ),
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-1}, name="rate")],
    seeds=range(4),
    claims=[Claim("high is better than low", lower={"rate": "high"}, than={"rate": "low"})],
)
"""


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with the study's file; returns exit code, output and errors, unwrapped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "small.py").write_text(FILE)

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    return call


def test_a_study_is_replicated_from_its_own_copy_with_its_overrides(command, tmp_path, monkeypatch):
    words = ["run", "small.py", "optimizer.weight_decay=0.25"]
    monkeypatch.setattr("sys.argv", ["flaxformer", *words])
    assert command(*words)[0] == 0
    (tmp_path / "small.py").write_text("an edit after the run")
    code, out, err = command("replicate", "--trust-code", "runs/small")
    assert (code, err) == (0, "")
    fresh = Store(tmp_path / "runs/small-replication")
    assert {row.seed for row in fresh.rows().values()} == set(range(1000, 1004))
    assert "small at the seeds 1000 to 1003: 8 runs to train" in out
    assert out.count("high is better than low first") == 1
    assert "of 1 verdict replicates;" in out
    table = (fresh.root / "replication.md").read_text()
    assert "| high is better than low |" in table
    assert "<h1>Does the rate matter?</h1>" in (fresh.root / "replication.html").read_text()
    recipes = [Store(tmp_path / folder).declaration["recipes"] for folder in ("runs/small", "runs/small-replication")]
    assert recipes[0] == recipes[1]
    code, out, err = command("replicate", "--trust-code", "runs/small")
    assert (code, err) == (0, "")
    assert "0 runs to train" in out


def test_mistakes_are_refused(command, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["flaxformer", "run", "small.py"])
    command("run", "small.py")
    mistakes = {
        ("--seeds", "3:8"): "already used the seeds 3; expected seeds that it did not use",
        ("--seeds", "x"): "seeds is 'x'; expected",
        ("model.d_model=16",): "gives other recipes than those that ran",
        ("--output", "runs/small"): "holds the first results; expected another folder",
        ("--file", "absent.py"): "no file 'absent.py'",
    }
    for words, message in mistakes.items():
        code, _, err = command("replicate", "--trust-code", "runs/small", *words)
        assert (code, message in err) == (2, True), err
    assert not (tmp_path / "runs/small-replication").exists()
    code, _, err = command("replicate", "--trust-code", "runs")
    assert (code, "holds no study" in err) == (2, True), err
    for folder in (tmp_path / "runs/small/code").iterdir():
        for file in folder.iterdir():
            file.unlink()
    code, _, err = command("replicate", "--trust-code", "runs/small")
    assert (code, "holds no copy of the study's file (code/); give the file with --file" in err) == (2, True), err
