"""The section on the data: notes, the task, the identity of the data, and the differences between arms."""

import pytest
from study.tiny import BASELINE, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import data_card
from flaxformer.report.document import document
from flaxformer.report.sections import Bullets, Folded
from flaxformer.store.declaration import DeclaredData
from flaxformer.store.store import Store
from flaxformer.study import Axis
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError
from flaxformer.tasks import TextFiles
from flaxformer.tasks.about import data_notes


@pytest.fixture
def files(tmp_path):
    """Two texts, the first with a description."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"to be or not to be {name}\n" * 60)
    (tmp_path / "a.txt.about.md").write_text("Shakespeare,\npublic domain <b>\u202e\n")
    return tmp_path


def study_of(files, *axes):
    task = TextFiles(path=str(files / "a.txt"), length=5, batch_size=2, evaluation_batches=2)
    model = BASELINE.model.replace(vocabulary=256)
    return tiny(baseline=BASELINE.replace(model=model, task=task), axes=axes, claims=(), seeds=[0])


def section_of(root, study):
    fill(root, study, lambda trial: 1.0)
    [section] = [section for section in document(analyse(Store(root))).sections if section.title == "Data"]
    return section.parts


def test_the_card_has_what_was_declared_and_reads_no_data(files, tmp_path):
    texts = Axis("task.path", {name: str(files / f"{name}.txt") for name in ("a", "b")}, name="text")
    study = study_of(files, texts, RATE)
    fingerprint = study.baseline.task.fingerprint()
    fill(tmp_path / "study", study, lambda trial: 1.0)
    for file in files.glob("*.txt*"):
        file.unlink()
    parts = data_card.of_study(analyse(Store(tmp_path / "study")))
    notes, card, others = parts
    assert notes == Bullets(["About a.txt: Shakespeare, public domain <b>·"])
    assert isinstance(card, Folded)
    rows = dict(card.part.texts)
    assert rows["Task"] == "TextFiles"
    assert "length 5" in rows["Fields"]
    assert rows["sha256"] == fingerprint["sha256"]
    assert rows["train bytes"] == f"{fingerprint['train_bytes']:,}"
    assert rows["Evaluation"].startswith("4 examples; ")
    assert rows["Arms"] == ""
    lines = others.part.texts
    assert len(lines) == 2, "both rates of the second text"
    assert all(line.startswith("text=b,rate=") and "task.path: " in line and "data.sha256: " in line for line in lines)


def test_arms_with_the_same_data_are_named_in_one_sentence(files, tmp_path):
    card = section_of(tmp_path / "study", study_of(files, RATE))[-1]
    assert dict(card.part.texts)["Arms"] == "All arms have the same task and data."


def test_evaluation_examples_in_training_are_counted():
    known = DeclaredData(digest="12ab", examples=1, in_training=0)
    assert data_card.describe_evaluation(known) == "1 example; none also in the training data (digest 12ab)"
    sampled = DeclaredData(digest="12ab", examples=2000, in_training=3, compared=16384)
    expected = "2,000 examples; 3 also in the training data, of 16,384 that were drawn, (digest 12ab)"
    assert data_card.describe_evaluation(sampled) == expected


def test_a_job_has_a_card_from_its_log():
    run = {"task": {"kind": "Copy", "symbols": 1200, "path": "<x>\x1b"}}
    notes, card = data_card.of_job(run, {"data": {"rows": 3000, "labels": ["x"] * 200}, "data_notes": ["A note."]})
    assert notes.texts == ["A note."]
    rows = dict(card.part.texts)
    assert rows["Fields"] == "symbols 1,200, path <x>·"
    assert rows["rows"] == "3,000"
    assert len(rows["labels"]) < 310
    assert data_card.of_job(run, {}) == []
    assert ("Data", "generated from the seed") in data_card.of_job(run, {"data": {}})[1].part.texts


def test_descriptions_are_refused_if_they_are_no_short_text(files):
    task = study_of(files).baseline.task
    (files / "a.txt.about.md").write_text("x" * 1001)
    with pytest.raises(UserError, match=r"a.txt.about.md has 1,001 characters; expected at most 1,000"):
        data_notes(task)
    (files / "a.txt.about.md").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"a.txt.about.md is not UTF-8; expected a short text on the source"):
        declaration(study_of(files))


def test_a_folder_has_its_description_with_and_without_a_slash(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("to be or not to be\n" * 9)
    tmp_path.with_name(f"{tmp_path.name}.about.md").write_text("Of plays.")
    for path in (str(tmp_path), f"{tmp_path}/"):
        assert data_notes(TextFiles(path=path, length=5, batch_size=2))[-1] == f"About {tmp_path.name}: Of plays."
