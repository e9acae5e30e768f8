"""Nothing is written through a symbolic link below an output folder, by any command, for every folder and file."""

import os
import shutil
from pathlib import Path

import pytest
from study.tiny import cache_folder, kept_programs

from flaxformer.cli import main
from flaxformer.system.digests import write_document
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.links import output_folder

FILE = """
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Study
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training

run = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=1),
    training=Training(steps=1, evaluate_every=1),
)
study = Study(
    name="linked",
    question="Is anything written outside?",
    baseline=run,
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")],
    seeds=range(2),
    keep="final",
)
"""
WRITTEN = {
    "run": ["groups", "leases", "weights", "code", "figures", "tables", "results.md", "report.html"],
    "report": [
        "figures",
        "figures/arms.svg",
        "tables",
        "tables/arms.csv",
        "results.parquet",
        "results.csv",
    ],
    "measure": ["weights", "trial_measurements.jsonl", "results.md", "figures"],
    "train": ["1", "log.jsonl", "code"],
    "replicate": ["declarations.jsonl", "declarations.head"],
}
WRITTEN["report"] += ["results.md", "results.tex", "report.html"]
"""Some of the paths that each command writes, at which a link is one message."""


def words(command, name="out"):
    return {
        "run": ["run", "file.py", "--output", name, "--devices", "1"],
        "report": ["report", name],
        "measure": ["measure", name, "measure.py"],
        "train": ["train", "file.py", "--output", name],
        "replicate": ["replicate", name, "--trust-code", "--output", "fresh", "--devices", "1"],
    }[command]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the finished results of a study in out/, and of a job in job/."""
    folder = tmp_path_factory.mktemp("links")
    (folder / "file.py").write_text(FILE)
    (folder / "measure.py").write_text("def measure(params, run):\n    return {'layers': run.model.layers}\n")
    before = os.getcwd()
    os.chdir(folder)
    with kept_programs(cache_folder(tmp_path_factory)):
        assert main(words("run")) == 0
        assert main(words("train", "job")) == 0
        yield folder
    os.chdir(before)


def content(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def link(path, outside):
    """Move a file or folder, or an empty one that is not there yet, outside, and leave a link in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.move(path, outside / path.name)
    elif "." in path.name:
        (outside / path.name).write_text("outside\n")
    else:
        (outside / path.name).mkdir()
    path.symlink_to(outside / path.name)


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("file.py", "measure.py"):
        shutil.copy(finished / name, name)
    Path("outside").mkdir()
    return tmp_path / "outside"


@pytest.mark.parametrize(("command", "path"), [(command, path) for command in WRITTEN for path in WRITTEN[command]])
def test_a_link_where_a_command_writes_is_one_message(finished, place, capsys, command, path):
    if command not in ("run", "train"):
        shutil.copytree(finished / "out", "out")
    link(Path("out") / path, place)
    before = content(place)
    code, err = main(words(command)), " ".join(capsys.readouterr().err.split())
    assert content(place) == before
    assert (code, f"{path} is a symbolic link; expected" in err) == (2, True), err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "measure", "run", "train"])
def test_no_path_of_a_folder_leads_outside(finished, place, capsys, command):
    whole = finished / ("job" if command == "train" else "out")
    for path in sorted(path.relative_to(whole) for path in whole.rglob("*")):
        if path.name.startswith(".lock") or len(path.parts) > 2:
            continue
        shutil.rmtree("out", ignore_errors=True)
        shutil.rmtree(place)
        place.mkdir()
        shutil.copytree(whole, "out")
        link(Path("out") / path, place)
        before = content(place)
        code, err = main(words(command)), capsys.readouterr().err
        assert content(place) == before, path
        assert code in (0, 2), (path, err)


def test_an_output_folder_may_be_a_link_and_nothing_below_it(tmp_path):
    (tmp_path / "elsewhere/inside").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    root = output_folder(tmp_path / "out")
    make_folder(root / "a/b")
    write_atomically(root / "a/b/file", b"x")
    assert (tmp_path / "elsewhere/a/b/file").read_bytes() == b"x"
    (root / "a/link").symlink_to(tmp_path / "elsewhere/inside")
    for write in (
        lambda: make_folder(root / "a/link/c"),
        lambda: make_folder(root / "a/link"),
        lambda: write_atomically(root / "a/link/file", b"x"),
        lambda: write_document(root / "a/link/c/file", {}),
    ):
        with pytest.raises(UserError, match="a/link is a symbolic link; expected a folder of its own"):
            write()
    (root / "b").symlink_to(tmp_path / "elsewhere/a/b/file")
    with pytest.raises(UserError, match="b is a symbolic link; expected a file of its own"):
        write_atomically(root / "b", b"y")
    assert not list((tmp_path / "elsewhere/inside").iterdir())
