"""What a user may get wrong, through the command: one clear message, exit code 2, and nothing lost.

What `prepare` refuses is in tests/data, what damage to a checkpoint's every file does in tests/checkpoint.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from jobs.small import FILE, TEXT

from flaxformer.checkpoint import Checkpoints, checkpoints
from flaxformer.checkpoint.marker import Marker
from flaxformer.cli import main, train
from flaxformer.data import prepare
from flaxformer.data.tokenizer import make_character_file
from flaxformer.store import job_log
from flaxformer.study.program_cost import Cost
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.files import digest_files, lock_folder


def files_in(folder):
    (folder / "tiny.py").write_text(FILE)
    (folder / "text.txt").write_text(TEXT)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command in a folder with a run's file and a text; its plan is not timed, which would compile a step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(train, "cost_of_run", lambda run: Cost(1, 1.0, 1, 1.0, 1.0))
    files_in(tmp_path)

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    files_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(train, "cost_of_run", lambda run: Cost(1, 1.0, 1, 1.0, 1.0))
        assert main(["train", "tiny.py", "--samples", "0"]) == 0
    return folder / "runs"


@pytest.fixture
def runs(command, finished, tmp_path):
    """A copy of the finished run, where the command finds it."""
    return shutil.copytree(finished, tmp_path / "runs") / "tiny"


def error_message(code, err):
    """The message, as one line."""
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    return " ".join(err.split())


def bad_tokens(folder):
    """Prepared text with a token that its vocabulary does not have, and digests to match."""
    prepare("text.txt", "bad.tokens")
    path = folder / "bad.tokens"
    about = digests.read_document(path / "data.json")
    digests.write_document(path / "data.json", about | {"vocabulary": 100})


def write(name, data):
    return lambda folder: (folder / name).write_bytes(data)


TOKENS = "from flaxformer.tasks import TokenFiles\nfrom flaxformer.training import Run\n"
MISTAKES = {
    "no file": (None, ["none.py"], "no file 'none.py'; expected a Python file that defines `run`"),
    "an empty file": (write("tiny.py", b""), ["tiny.py"], "'tiny.py' defines no `run`; expected `run = Run(...)`"),
    "a study's file": (write("tiny.py", b"study = 1"), ["tiny.py"], "'tiny.py' defines `study` and no `run`"),
    "another encoding": (write("tiny.py", b"# \xe9\n"), ["tiny.py"], "tiny.py"),
    "an error in the file": (write("tiny.py", b"\nrun = 1 / 0"), ["tiny.py"], "tiny.py, line 2: ZeroDivisionError"),
    "no text": (None, ["tiny.py", "task.path=none.txt"], "path is 'none.txt', which is neither a file nor a folder"),
    "an empty text": (
        write("empty.txt", b""),
        ["tiny.py", "task.path=empty.txt"],
        "TextFiles: the training text has 0 bytes; expected more than length 8",
    ),
    "a text too short": (
        write("short.txt", b"0123456789"),
        ["tiny.py", "task.path=short.txt"],
        "TextFiles: the validation text has 1 bytes; expected more than length 8",
    ),
    "a text in another encoding": (
        lambda folder: [
            (folder / "letters.json").write_bytes(make_character_file([TEXT])),
            (folder / "latin.txt").write_bytes((TEXT + "café ").encode("latin-1") * 9),
        ],
        ["tiny.py", "task.path=latin.txt", "task.tokenizer=letters.json"],
        "latin.txt, line 1: byte 0xe9 at offset 953 is not UTF-8; expected UTF-8 text",
    ),
    "no tokenizer": (None, ["tiny.py", "task.tokenizer=none.json"], "tokenizer is 'none.json', which is not a file"),
    "a vocabulary too small": (
        None,
        ["tiny.py", "model.vocabulary=255"],
        "model.vocabulary is 255; expected at least the task's 256 tokens",
    ),
    "a token out of the vocabulary": (
        lambda folder: [
            bad_tokens(folder),
            write("tiny.py", f"{TOKENS}run = Run(task=TokenFiles(path='{folder}/bad.tokens'))".encode())(folder),
        ],
        ["tiny.py"],
        "train.bin has the token 116; expected ids below vocabulary 100",
    ),
    "a sequence longer than the positions": (
        None,
        ["tiny.py", "model.positions=LearnedPositions(max_length=7)"],
        "model.positions.max_length is 7; expected at least the task's 8 tokens",
    ),
    "an unknown field": (
        None,
        ["tiny.py", "task.pth=x"],
        "'task.pth': TextFiles has no field 'pth'; did you mean 'path'",
    ),
    "an unknown choice": (None, ["tiny.py", "training.remat=bloc"], "Training.remat is 'bloc'; did you mean 'block'?"),
    "a number of another kind": (None, ["tiny.py", "model.layers=two"], "ModelConfig.layers is 'two'; expected int"),
    "a number out of range": (None, ["tiny.py", "model.layers=-1"], "ModelConfig.layers is -1; expected a number at"),
    "steps that do not fit": (
        None,
        ["tiny.py", "training.steps=5"],
        "evaluate_every is 2; expected a divisor of steps 5",
    ),
    "a batch that cannot be cut": (
        None,
        ["tiny.py", "training.micro_batches=3"],
        "training.micro_batches is 3; expected a divisor of task.batch_size 4",
    ),
    "an unknown tracker": (
        None,
        ["tiny.py", "--track", "tensorbord"],
        "track is 'tensorbord'; did you mean 'tensorboard'?",
    ),
    "nothing to keep": (None, ["tiny.py", "--keep-last", "0"], "keep_last is 0; expected a number at least 1"),
    "less than no sample": (None, ["tiny.py", "--samples", "-1"], "samples is -1; expected a number at least 0"),
    "a file for a folder": (
        None,
        ["tiny.py", "--output", "text.txt"],
        "output is 'text.txt', and 'text.txt' is a file; expected a folder",
    ),
    "a folder in a file": (None, ["tiny.py", "--output", "text.txt/run"], "text.txt' is a file; expected a folder"),
}


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_before_anything_is_created(command, tmp_path, name):
    prepared, arguments, message = MISTAKES[name]
    if prepared:
        prepared(tmp_path)
    before = digest_files(tmp_path)
    code, _, err = command("train", *arguments)
    assert message in error_message(code, err)
    after = {path: digest for path, digest in digest_files(tmp_path).items() if "__pycache__" not in path}
    assert after == before


def refused(command, folder, message, *arguments):
    """The command says this and leaves the folder as it is."""
    before = digest_files(folder)
    code, _, err = command("train", "tiny.py", *arguments)
    assert message in error_message(code, err)
    assert digest_files(folder) == before


@pytest.mark.long
def test_a_folder_of_another_run(command, runs):
    refused(
        command,
        runs,
        "runs/tiny holds another run: optimizer.learning_rate: 0.01 -> 0.1",
        "optimizer.learning_rate=0.1",
    )
    refused(command, runs, 'task.path: "text.txt" -> "two.txt"', "task.path=two.txt")


def test_two_jobs_in_one_folder_are_refused(command, runs):
    with lock_folder(runs, "training"):
        refused(command, runs, "another process is training in runs/tiny; wait for it, or give --output")


def test_checkpoints_of_another_architecture(command, runs):
    config = digests.read_document(runs / "config.json")
    config["run"]["model"]["feed_forward"]["d_ff"] = 7
    digests.write_document(runs / "config.json", config)
    refused(
        command, runs,
        "step 4 of runs/tiny is of another architecture: checkpoint has params/blocks/0/feed_forward/up [8, 32], "
        "the config has [8, 7]",
        "model.feed_forward.d_ff=7",
    )  # fmt: skip


def without_digest(text):
    return json.dumps({name: value for name, value in json.loads(text).items() if name != "digest"})


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:30], "damaged"),
        (lambda text: text.replace('"epsilon": 1e-05', '"epsilon": 10.0'), "its digest differs"),
        (lambda text: text.replace("causal", "prefix"), "its digest differs"),
        (without_digest, "it has no digest"),
        (lambda text: "[]", "it is a list"),
    ],
)
def test_a_changed_config_is_refused_by_train_and_generate(command, runs, change, why):
    text = (runs / "config.json").read_text()
    assert change(text) != text
    (runs / "config.json").write_text(change(text))
    refused(command, runs, "runs/tiny/config.json is damaged")
    code, _, err = command("generate", "runs/tiny", "--prompt", "to be")
    assert why in error_message(code, err)


def test_a_damaged_log_is_kept_and_its_other_lines_stay(command, runs, caplog):
    lines = (runs / "log.jsonl").read_text().splitlines()
    damaged = "\n".join([lines[0], lines[1][:20], *lines[2:], ""])
    (runs / "log.jsonl").write_text(damaged)
    assert command("train", "tiny.py")[0] == 0
    assert "runs/tiny/log.jsonl, line 2 is damaged: it has no digest; it is kept as log.jsonl.damaged" in caplog.text
    assert (runs / "log.jsonl.damaged").read_text() == damaged
    assert (runs / "log.jsonl").read_text().splitlines() == [lines[0], *lines[2:]]


def test_a_log_that_lost_lines_is_reported(command, runs, caplog):
    path = runs / "log.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"steps"' not in line))
    assert command("train", "tiny.py")[0] == 0
    assert "runs/tiny/log.jsonl lacks 4 of the 4 steps that were trained, from step 1 on" in caplog.text


@pytest.mark.parametrize("line", ['{"step": "4", "kind": "steps"}', '{"kind": "steps"}', "[]", "4", "\udcff"])
def test_a_line_that_is_none_of_a_log(tmp_path, line):
    content = line.encode(errors="surrogateescape")
    is_object = line.startswith("{")
    (tmp_path / "log.jsonl").write_bytes(digests.line(json.loads(line)) if is_object else content + b"\n")
    with pytest.raises(UserError, match="line is damaged" if is_object else "line 1 is damaged"):
        job_log.read(tmp_path / "log.jsonl")


def truncated(folder, step):
    for path in (folder / str(step)).rglob("*"):
        if path.is_file() and path.stat().st_size > 100 and path.name != "published.json":
            path.write_bytes(path.read_bytes()[:100])


@pytest.mark.long
def test_a_truncated_checkpoint_gives_way_to_the_one_before(command, runs, finished):
    truncated(runs, 4)
    code, out, _ = command("train", "tiny.py", "--samples", "0")
    assert code == 0
    assert "resuming after step 2" in out
    assert (runs / "4.corrupt").is_dir()
    # Bit for bit the run that was never damaged.
    markers = [(folder / "4" / "published.json").read_bytes() for folder in (runs, finished / "tiny")]
    assert Marker.decode(markers[0], 4).digests == Marker.decode(markers[1], 4).digests


@pytest.mark.slow
def test_nothing_but_truncated_checkpoints(command, runs):
    log = (runs / "log.jsonl").read_bytes()
    for step in (2, 4):
        truncated(runs, step)
    code, _, err = command("train", "tiny.py")
    message = error_message(code, err[err.index("error: ") :])
    assert "runs/tiny holds no checkpoint that can be read step 4 of runs/tiny is corrupt:" in message
    assert (runs / "log.jsonl").read_bytes() == log
    assert {path.name for path in runs.glob("*.corrupt")} == {"2.corrupt", "4.corrupt"}
    for _ in range(2):
        refused(
            command, runs, "runs/tiny holds damaged checkpoints alone (2.corrupt, 4.corrupt); restore one from a copy"
        )
    assert command("train", "tiny.py", "--samples", "0", "--restart")[0] == 0
    assert (runs / "superseded/1/log.jsonl").read_bytes() == log
    assert Checkpoints(runs).steps() == [2, 4]


def test_checkpoints_whose_markers_are_damaged_too(command, runs):
    for step in (2, 4):
        truncated(runs, step)
        (runs / str(step) / "published.json").write_text("{")
    for _ in range(2):
        refused(command, runs, "runs/tiny holds damaged checkpoints alone (2, 4)")


@pytest.mark.long
def test_a_full_disk(command, runs, finished, monkeypatch):
    shutil.rmtree(runs / "4")
    before = digest_files(runs / "2")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.files, "free_bytes", lambda folder: 1234)
        code, _, err = command("train", "tiny.py", "--samples", "0")
    message = error_message(code, err[err.index("error: ") :])
    assert "step 4 was not saved in runs/tiny: the disk is full: a save needs" in message
    assert digest_files(runs / "2") == before
    assert command("train", "tiny.py", "--samples", "0")[0] == 0
    assert (runs / "4" / "published.json").exists()


@pytest.mark.slow
def test_a_full_disk_for_the_log(command, runs, monkeypatch):
    shutil.rmtree(runs / "4")

    flush = os.fsync

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").resolve().name == "log.jsonl":
            raise OSError(28, "No space left on device")
        flush(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(digests.os, "fsync", full)
        code, _, err = command("train", "tiny.py", "--samples", "0")
    assert "runs/tiny/log.jsonl cannot be written: No space left on device; the checkpoints are kept" in error_message(
        code, err
    )
    code, out, _ = command("train", "tiny.py", "--samples", "0")
    assert code == 0
    assert "resuming after step 2" in out


def test_a_folder_that_may_not_be_written_to(command, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, _, err = command("train", "tiny.py")
    assert "cannot be written to; expected a folder" in error_message(code, err)
