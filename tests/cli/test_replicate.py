"""`flaxformer replicate`: the copy of the study at fresh seeds, both results side by side."""

import contextlib
import html
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from study.tiny import cache_folder, fill, kept_programs, tiny

from flaxformer.cli import main, replicate
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the study's file and its results in runs/small."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["run", "small.py"]
    (folder / "small.py").write_text(FILE)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["flaxformer", *words])
        assert main(words) == 0
    return folder


@pytest.fixture
def quick_command(trained, command, tmp_path, monkeypatch):
    """The command beside the results of the study; reports have no figures."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("flaxformer.report.figures.draw", lambda figures, folder: {})
    return command


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


@pytest.mark.long
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
    recipes = [Store(tmp_path / folder).declaration.recipes for folder in ("runs/small", "runs/small-replication")]
    assert recipes[0] == recipes[1]
    code, out, err = command("replicate", "--trust-code", "runs/small")
    assert (code, err) == (0, "")
    assert "0 runs to train" in out


def shown(command, root):
    """What the first folder's report says of attempts: results.md, the page, and the terminal; each unwrapped."""
    page = re.sub(r"<[^>]+>", " ", (root / "report.html").read_text())
    texts = [(root / "results.md").read_text(), page, command("report", str(root), "--full")[1]]
    return [" ".join(html.unescape(text).split()) for text in texts]


@pytest.mark.long
def test_every_attempt_is_listed_in_the_report_of_the_first_folder(quick_command, tmp_path):
    command, first = quick_command, tmp_path / "runs/small"
    assert not any("replicate" in text for text in shown(command, first))
    verdicts = {}
    for number, seeds in enumerate(("50:54", "70:74")):
        code, out, err = command("replicate", "--trust-code", "runs/small", "--seeds", seeds)
        assert (code, err) == (0, "")
        assert "The report of runs/small lists this attempt" in out
        assert "First report: runs/small/report.html" in out
        verdicts[seeds] = re.findall(r"fresh \S+ (\w+):", out)[0]
        where = (
            f"at the seeds {seeds[:2]} to {int(seeds[3:]) - 1} in small-replication-seeds-{seeds.replace(':', 'to')}"
        )
        page = re.sub(r"<[^>]+>", " ", (first / "report.html").read_text())
        for text in [(first / "results.md").read_text(), page]:  # without another `report`
            assert f"replicated {where}" in " ".join(html.unescape(text).split()).replace("\\", ""), text
        for text in shown(command, first):
            assert text.replace("\\", "").count("replicated at the seeds") >= number + 1
            assert f"(high is better than low: {verdicts[seeds]})" in text.replace("\\", "")


@pytest.mark.long
def test_an_attempt_that_is_interrupted_is_listed(quick_command, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise UserError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(replicate, "follow", interrupted)
        assert quick_command("replicate", "--trust-code", "runs/small")[0] == 2
    for name in ("results.md", "report.html"):
        text = (tmp_path / "runs/small" / name).read_text()
        assert "attempt to replicate begun at the seeds 1000 to 1003" in text


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("declaration_log.record_event", "cannot be written, or has no log; its report does not list this attempt"),
        ("write", "out lists this attempt after 'flaxformer report out' (the disk is full)"),
    ],
)
def test_an_attempt_that_cannot_be_listed_is_reported(tmp_path, monkeypatch, capsys, part, message):
    monkeypatch.chdir(tmp_path)
    store = fill(Path("out"), tiny(), lambda trial: 1.0 + trial.seed)

    def refuse(*arguments):
        if part == "write":
            raise UserError("the disk is full")
        return False

    monkeypatch.setattr(f"flaxformer.cli.replicate.{part}", refuse)
    assert not replicate.list_attempt(Console(width=200), store, [50, 51], Path("fresh"))
    assert message in " ".join(capsys.readouterr().out.split())


def test_mistakes_are_refused(quick_command, tmp_path):
    command = quick_command
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
