"""Names of files and folders that do not fit a command are answered before JAX is imported."""

import dataclasses
import json
import subprocess
import sys

import pytest

from flaxformer.cli import main
from flaxformer.cli.mistakes import check_inputs
from flaxformer.cli.parsing import parse
from flaxformer.model import Sampling
from flaxformer.system.errors import UserError
from flaxformer.system.python_files import near_names
from flaxformer.system.settings import NUMBERS

STUDY, JOB = "study = 1\n", "run = 1\n"
WITHOUT_JAX = """
import json
import sys
from flaxformer.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 2, words
    assert "jax" not in sys.modules, words
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "book.py").write_text("ledger = 1\n")
    (tmp_path / "star.py").write_text("from flaxformer import *\nstudy = 1\n")
    (tmp_path / "starred_job.py").write_text("from flaxformer.catalog import *\nrun = 1\n")
    (tmp_path / "neither.py").write_text("model = 1\n")
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
    (["train", "star.py"], "'star.py' defines `study` and no `run`; expected flaxformer run star.py"),
    (["plan", "starred_job.py"], "defines `run` and no `study`; expected flaxformer train starred_job.py"),
    (["run", "neither.py"], "'neither.py' defines no `study`; expected `study = Study(...)`"),
    (["noise", "neither.py"], "`run = Run(...)` or `ledger = Ledger(...)`"),
    (["check", "runs"], "'runs' is a folder; expected a Python file that defines `study` or `run`"),
    (
        ["report", "study.py"],
        "'study.py' is a file; expected the output folder of a study or a job, such as runs/study",
    ),
    (
        ["compare", "runs", "job.py"],
        "'job.py' is a file; expected the output folder of a study or a job, such as runs/job",
    ),
    (["compare", "run", "runs"], "no folder 'run'; did you mean 'runs'?"),
    (["train", "job.py", "--output", "notes.txt/x"], "output is 'notes.txt/x', and 'notes.txt' is a file"),
    (["run", "open.py"], "open.py, line 1: '(' was never closed"),
    (["report", "runs/width"], "no folder 'runs/width'; did you mean 'runs/widths'?"),
    (["generate", "elsewhere"], "no folder 'elsewhere'; expected a folder of results"),
    (["generate", "runs", "--edit", "edits.py"], "no file 'edits.py'; expected a Python file that defines `edit`"),
    (["improve", "book.py", "--candidate", "jobs.py", "--reason", "x"], "no file 'jobs.py'; did you mean 'job.py'?"),
    (["measure", "runs", "norms.py"], "no file 'norms.py'; expected a Python file that defines the function"),
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


WORDS = [
    (["run", "study.py", "--steps", "10"], "'--steps' is no option; expected the field and its value in one word: "
     "training.steps=10"),
    (["train", "job.py", "--lr=0.1"], "in one word: optimizer.learning_rate=0.1"),
    (["train", "job.py", "--model.layers", "2"], "in one word: model.layers=2"),
    (["plan", "study.py", "model.layers"], "in one word: model.layers=VALUE"),
    (["plan", "study.py", "model.layers = 2"], "in one word: model.layers=2"),
    (["plan", "study.py", "seeds=3"], "'seeds=3' is no field of the run; expected --seeds 3"),
    (["run", "study.py", "--seeds", "0"], "seeds is '0', which names no seed"),
    (["run", "study.py", "--share", "3/2"], "share is '3/2'; expected K/N"),
    (["run", "study.py", "--workers", "2"], "launcher is None; expected --launcher local"),
    (["run", "study.py", "--devices", "0"], "devices is 0; expected a number at least 1"),
    (["plan", "study.py", "--quick"], "--quick is given without --target, and has no effect"),
    (["train", "job.py", "--profile", "0"], "profile is '0'; expected a number of steps, or FIRST:COUNT"),
    (["run", "study.py", "--profile", "1:x"], "profile is '1:x'; expected a number of steps, or FIRST:COUNT"),
    (["train", "job.py", "--mesh", "data"], "mesh is 'data'; expected devices along data, fsdp and tensor"),
    (["run", "study.py", "--mesh", "data=0"], "mesh is 'data=0': data is 0; expected at least 1"),
    (["train", "job.py", "--keep-last", "0"], "keep_last is 0; expected a number at least 1"),
    (["train", "job.py", "--keep-best", "-1"], "keep_best is -1; expected a number at least 0"),
    (["train", "job.py", "--save-every", "0"], "save_every is 0; expected a number at least 1"),
    (["train", "job.py", "--samples", "-1"], "samples is -1; expected a number at least 0"),
    (["train", "job.py", "--process", "3"], "process 3 without a coordinator; expected HOST:PORT"),
    (["run", "study.py", "--coordinator", "x"], "coordinator is 'x'; expected HOST:PORT, or auto"),
    (["run", "study.py", "--save-minutes", "-1"], "save_minutes is -1.0; expected a number at least 0"),
    (["generate", "runs", "--beams", "0"], "beams is 0; expected a number at least 1"),
    (["generate", "runs", "--tokens", "-1"], "tokens is -1; expected a number at least 1"),
    (["generate", "runs", "--seed", "-1"], "seed is -1; expected a number at least 0"),
    (["generate", "runs", "--beams", "2", "--top-k", "3"], "beams is 2 with temperature, top_k or top_p"),
    (["generate", "runs", "--temperature", "0"], "temperature is 0.0; expected a number above 0"),
    (["generate", "runs", "--temperature", "nan"], "temperature is nan; expected a number above 0"),
    (["generate", "runs", "--top-k", "0"], "top_k is 0; expected a number at least 1"),
    (["generate", "runs", "--top-p", "1.5"], "top_p is 1.5; expected a number at most 1"),
    (["generate", "runs", "--trial-seed", "-1"], "trial_seed is -1; expected a number at least 0"),
    (["verify", "runs", "--trials", "0"], "trials is 0; expected a number at least 1"),
    (["measure", "runs", "job.py", "--step", "-1"], "step is -1; expected a number at least 0"),
    (["fit", "points.csv", "--delta", "0"], "delta is 0.0; expected a number above 0"),
    (["fit", "points.csv", "--resamples", "-1"], "resamples is -1; expected a number at least 0"),
    (["fit", "points.csv"], "'points.csv' is not a file; expected a table of points: .csv, .jsonl, .parquet"),
    (["bench", "training", "--rounds", "0"], "rounds is 0; expected a number at least 1"),
    (["prepare", "notes.txt", "tokens", "--validation-tenths", "10"], "validation_tenths is 10; expected"),
    (["train", "job.py", "--track", "wand"], "track is 'wand'; did you mean 'wandb'?"),
    (["run", "study.py", "--track", "Mine"], "track is 'Mine'; it has: tensorboard, wandb"),
    (["train", "job.py", "--extend", "--restart"], "--extend is given beside --restart; expected one of them"),
    (["improve", "book.py", "seed=1"], 'the attempt has no reason; expected --reason "why the change may help"'),
    (["improve", "book.py", "--reason", "x"], "--reason stands without a change; expected one"),
    (["improve", "book.py", "--confirm", "--withdraw"], "--confirm stands beside --withdraw; expected one"),
    (["generate", "runs", "--tokens", "abc"], "--tokens is 'abc'; expected a whole number"),
    (["generate", "runs", "--top-k", "1.5"], "--top-k is '1.5'; expected a whole number"),
    (["train", "job.py", "--keep-last=x"], "--keep-last is 'x'; expected a whole number"),
    (["run", "study.py", "--save-minutes", "soon"], "--save-minutes is 'soon'; expected a number"),
    (["improve", "book.py", "seed=1", "--tune", "0.1", "fast"], "--tune is 'fast'; expected a number"),
    (["train", "job.py", "--remat"], "--remat is given without --plan, and has no effect"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from star import *\nfrom flaxformer import *\n", "defines `study` and no `run`; expected flaxformer run"),
        ("from flaxformer import *\nglobals()\n", "defines no `run`; expected `run = Run(...)`"),
    ],
)
def test_what_an_executed_file_defines_is_named(folder, capsys, text, message):
    (folder / "star.py").write_text("from flaxformer import *\nstudy = Study(name='x', question='x', baseline=Run())\n")
    (folder / "own.py").write_text(text)
    assert main(["train", "own.py"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "function" not in error


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_a_word_in_another_form_is_one_message(folder, capsys, words, message):
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["run", "model.py"], ["noise", "a.py", "--change", "model.dropout=0.1"], ["run", "a.py", "seeds=Seeds()"]]
)
def test_files_and_values_of_options_are_no_fields(words):
    assert parse(words).file.suffix == ".py"


@pytest.mark.parametrize(
    ("words", "port"), [(["--serve"], 0), (["--serve", "8000"], 8000), (["--serve", "--json"], 0), ([], None)]
)
def test_a_page_is_served_on_a_free_port_without_a_number(words, port):
    assert parse(["status", "runs", *words]).serve == port


def test_numbers_of_a_decoding_have_the_bounds_of_its_config():
    fields = {field.name: field.metadata["bounds"] for field in dataclasses.fields(Sampling)}
    assert fields == {name: NUMBERS[name] for name in fields}


def test_no_mistake_imports_jax(folder):
    commands = json.dumps([words for words, _ in (*MISTAKES, *WORDS)])
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, commands], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize(
    "text",
    [
        "run = 1\nstudy = 2\n",
        "run = 1\nif run:\n    study = 2\n",
        "from elsewhere import *\nrun = 1\n",
        "from elsewhere import study\nrun = 1\n",
        "from .flaxformer import *\nrun = 1\n",
        "run = 1\nglobals()['study'] = 2\n",
        "import absent\n",
        "x = 1 / 0\n",
    ],
)
def test_a_file_that_may_define_the_name_is_executed(folder, text):
    (folder / "both.py").write_text(text)
    assert check_inputs("run", type("Command", (), {"file": folder / "both.py"})()) is None


def test_near_names_are_of_the_candidates(folder):
    assert near_names(folder / "jb.py", folder.iterdir()) == f"did you mean '{folder / 'job.py'}'?"
    assert near_names(folder / "jb.py", []) == ""
    assert near_names(folder / "none.py", [folder / "job.py"]) == ""
    assert near_names(folder / "jobs", [folder / "job.py"]) == f"did you mean '{folder / 'job.py'}'?"


def test_a_folder_that_cannot_be_read_has_no_names(folder):
    with pytest.raises(UserError, match="no file"):
        check_inputs("run", type("Command", (), {"file": folder / "absent" / "study.py"})())
