"""`examples/reviews.py`, which docs/own_data.md shows: from a table to the class of a new text."""

from pathlib import Path

import pytest

from flaxformer import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own_data.md").read_text()
FEW = ["training.steps=4", "training.evaluate_every=2", "task.batch_size=4", "task.evaluation_batches=20"]


def test_the_page_shows_the_example():
    assert (ROOT / "examples" / "reviews.py").read_text() in PAGE
    assert "\n".join((ROOT / "examples" / "reviews.csv").read_text().splitlines()[:2]) in PAGE


@pytest.mark.long
def test_every_step_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """Its Python too, after the study that it reads; with few steps, and on one seed."""
    for name in ("reviews.csv", "reviews.py"):
        (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    assert cli.main(["plan", "reviews.py"]) == 0
    shown = capsys.readouterr().out
    [listed] = [block for block in PAGE.split("```") if block.startswith("text\n240 rows")]
    sentences = " ".join(listed.removeprefix("text\n").split())
    assert sentences in " ".join(shown.split())
    assert cli.main(["run", "reviews.py", *FEW, "--seeds", "1", "--keep", "final"]) == 0
    report = (tmp_path / "runs" / "reviews" / "report.html").read_text()
    assert "an accuracy of 0.604 in validation and 0.625 in test" in report
    names = {}
    for block in PAGE.split("```python\n")[1:]:
        exec(block.partition("```")[0], names)
    assert names["logits"].shape == (2, 2)
    assert set(names["run"].task.labels) == {"negative", "positive"}
    assert "notes.csv, line 4 has 3 cells" in capsys.readouterr().out


def test_other_texts_are_read_as_those_of_the_table(monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    from flaxformer.tasks import TextLabels

    task = TextLabels(path="reviews.csv", text="text", label="label", max_length=20)
    train = task.load().train
    texts = [row.values["text"] for row in task.row_sides()["training"]]
    batch = task.read(texts)
    assert (batch.inputs == train.inputs).all()
    assert (batch.valid == train.valid).all()
    assert batch.weights.sum() == 0
    assert task.read(["ab"]).inputs[0].tolist() == [97, 98] + [0] * 18
