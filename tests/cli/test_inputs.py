"""Names of files and folders that do not fit a command are answered before JAX is imported."""

import subprocess
import sys

import pytest

from flaxformer.cli import main
from flaxformer.cli.mistakes import check_inputs
from flaxformer.cli.parsing import parse
from flaxformer.system.errors import UserError
from flaxformer.system.python_files import near_names

STUDY, JOB = "study = 1\n", "run = 1\n"
WITHOUT_JAX = """
import sys
from flaxformer.cli import main
code = main(sys.argv[1:])
sys.exit(code if "jax" not in sys.modules else 99)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "open.py").write_text("study = (\n")
    (tmp_path / "notes.txt").write_text("not a program\n")
    (tmp_path / "runs" / "widths").mkdir(parents=True)
    return tmp_path


MISTAKES = [
    (["run", "stduy.py"], "no file 'stduy.py'; did you mean 'study.py'?"),
    (["plan", "study"], "no file 'study'; did you mean 'study.py'?"),
    (["check", "nothing_like_it.py"], "expected a Python file that defines `study` or `run`"),
    (["train", "study.py"], "'study.py' defines `study` and no `run`; expected flaxformer run study.py"),
    (["run", "job.py"], "'job.py' defines `run` and no `study`; expected flaxformer train job.py"),
    (["plan", "job.py"], "'job.py' defines `run` and no `study`; expected flaxformer train job.py"),
    (["plan", "jobs.py", "--target", "v5e"], "no file 'jobs.py'; did you mean 'job.py'?"),
    (["declare", "job.py"], "expected flaxformer train job.py"),
    *(
        ([command, "notes.txt"], f"'notes.txt' is not a Python file (.py); expected one that defines `{name}`")
        for command, name in {"run": "study", "train": "run", "improve": "ledger", "check": "study` or `run"}.items()
    ),
    (["run", "open.py"], "open.py, line 1: '(' was never closed"),
    (["report", "runs/width"], "no folder 'runs/width'; did you mean 'runs/widths'?"),
    (["generate", "elsewhere"], "no folder 'elsewhere'; expected a folder of results"),
]


@pytest.mark.parametrize("file", ["study.py", "job.py"])
def test_a_study_and_a_job_are_planned_for_a_target(folder, file):
    command = parse(["plan", file, "--target", "v5e-2x4"])
    check_inputs("plan", command)
    assert command.target == "v5e-2x4"


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_one_message(folder, capsys, words, message):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_no_mistake_imports_jax(folder):
    for words, _ in MISTAKES[:4]:
        done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, *words], capture_output=True, check=False)
        assert done.returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        "run = 1\nstudy = 2\n",
        "run = 1\nif run:\n    study = 2\n",
        "from elsewhere import *\nrun = 1\n",
        "from elsewhere import study\nrun = 1\n",
    ],
)
def test_a_file_that_may_define_the_name_is_executed(folder, text):
    (folder / "both.py").write_text(text)
    assert check_inputs("run", type("Command", (), {"file": folder / "both.py"})()) is None


def test_near_names_are_of_the_candidates(folder):
    assert near_names(folder / "jb.py", folder.iterdir()) == f"did you mean '{folder / 'job.py'}'?"
    assert near_names(folder / "jb.py", []) == ""


def test_a_folder_that_cannot_be_read_has_no_names(folder):
    with pytest.raises(UserError, match="no file"):
        check_inputs("run", type("Command", (), {"file": folder / "absent" / "study.py"})())
