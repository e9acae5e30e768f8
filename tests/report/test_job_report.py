"""The page, the last lines and the status of a training job, from a log that is written here by hand."""

import json
import math

import pytest

from flaxformer.cli import main
from flaxformer.report.job import is_job, read_job
from flaxformer.system import digests
from flaxformer.system.digests import write_document

LAUNCH = {"parameters": 1000, "flops_per_step": 2_000_000, "tokens_per_step": 64, "device": "TPU v5e", "devices": 2}
EVIL = "<script>alert(1)</script>\x1b[31m"


def steps(last, losses):
    return {"kind": "steps", "step": last, "seconds": 0.5, "loss": losses, "learning_rate": [1e-3] * len(losses)}


LINES = [
    {"kind": "launch", "step": 0, **LAUNCH, "peak": 1e8},
    {"kind": "evaluation", "step": 0, "validation_loss": 5.5},
    steps(2, [5.0, 4.0]),
    {"kind": "evaluation", "step": 2, "validation_loss": 3.5},
    {"kind": "sample", "step": 2, "prompt": "a", "text": EVIL},
    steps(4, [3.0, 2.0]),
    {"kind": "evaluation", "step": 4, "validation_loss": 3.75},
    {"kind": "test", "step": 4, "test_loss": 3.6, "test_loss_se": 0.1},
]


@pytest.fixture
def folder(tmp_path):
    """A function that writes the folder of a job with these lines."""

    def write(lines, total=4):
        root = tmp_path / "job"
        root.mkdir(exist_ok=True)
        write_document(root / "config.json", {"format": 2, "run": {"training": {"steps": total}, "name": EVIL}})
        (root / "log.jsonl").write_bytes(b"".join(map(digests.line, lines)))
        return root

    return write


def test_the_last_lines_have_state_scores_and_what_follows(folder, capsys):
    root = folder(LINES)
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert "job: finished: 4 of 4 steps" in text.replace("\n", " ")
    assert "best validation loss 3.5 after step 2" in text
    assert "last validation loss 3.75 after step 4" in text
    assert "test data: test loss 3.6\n" in text
    assert f"Next: flaxformer generate {root}" in text


@pytest.mark.parametrize(
    ("command", "total", "following"),
    [
        ("train job.py --output 'a b'", 4, "train job.py --output 'a b' training.steps=8 --extend"),
        ("train job.py --set training.steps=4 seed=1", 4, "train job.py seed=1 training.steps=8 --extend"),
        ("train job.py --restart seed=1", 9, "train job.py seed=1"),
    ],
)
def test_the_last_command_follows_with_more_steps_once_all_are_taken(folder, capsys, command, total, following):
    launch = next(line for line in LINES if line["kind"] == "launch") | {"command": f"flaxformer {command}"}
    root = folder([launch, *(line for line in LINES if line["kind"] != "launch")], total)
    assert main(["report", str(root)]) == 0
    assert f"Next: flaxformer {following}\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["rm train x", "flaxformer report x", "flaxformer 'train", "", None])
def test_another_command_is_not_repeated(folder, capsys, command):
    root = folder([LINES[0] | {"command": command}, *LINES[1:]])
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.count("Next: ") == 2
    assert "train" not in text


def test_a_recorded_command_is_printed_as_text(folder, capsys):
    root = folder([LINES[0] | {"command": "flaxformer train \x1b[31m$(touch gone);b"}, *LINES[1:]])
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "$(touch' 'gone);b' training.steps=8" in text  # quoted, so that a shell executes none of it


def test_the_page_has_curves_cost_and_samples_as_text(folder):
    root = folder(LINES)
    main(["report", str(root)])
    page = (root / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    # 4 steps in 1 s: 256 tokens/s, 8 MFLOP/s, which are 8 % of the peak.
    assert "256 tokens/s" in page
    assert "8.0% of the published peak" in page
    assert (root / "figures" / "curves.svg").stat().st_size > 1000


def test_a_job_that_has_not_ended_says_so(folder, capsys):
    root = folder(LINES[:4], total=10)
    main(["status", str(root)])
    assert "stopped or running: 2 of 10 steps" in capsys.readouterr().out
    main(["status", str(root), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["steps"], found["diverged"]) == (2, 10, False)


def test_a_loss_that_is_not_finite_is_a_diverged_run(folder):
    job = read_job(folder([*LINES[:5], steps(4, [3.0, math.inf])], total=10))
    assert job.state == "diverged: its loss is not finite after 4 of 10 steps"
    assert not job.is_finished
    assert job.best["step"] == 2


@pytest.mark.parametrize("damage", ["config", "log"])
def test_a_damaged_file_is_one_message(folder, capsys, damage):
    root = folder(LINES)
    path = root / ("config.json" if damage == "config" else "log.jsonl")
    path.write_bytes(path.read_bytes().replace(b"steps", b"stops", 1))
    assert main(["report", str(root)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("field", ["seconds", "elapsed", "flops_per_step", "peak"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400, "1"])
def test_a_number_that_cannot_be_is_one_message_although_its_digest_fits(folder, capsys, field, value):
    root = folder([line | ({field: value} if field in line else {}) for line in (LINES[0], LINES[2] | {"elapsed": 1})])
    assert main(["report", str(root)]) == 2
    assert f"its {field} is absent, of another type, or out of range" in capsys.readouterr().err


@pytest.mark.parametrize("total", [None, "x", -1, [], 1.5])
def test_steps_of_another_type_are_one_message(folder, capsys, total):
    assert main(["report", str(folder(LINES, total=total))]) == 2
    assert "training.steps is" in capsys.readouterr().err


def test_nothing_is_written_through_a_link(folder, capsys, tmp_path):
    root = folder(LINES)
    (tmp_path / "elsewhere").mkdir()
    (root / "figures").symlink_to(tmp_path / "elsewhere")
    assert main(["report", str(root)]) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_without_a_log_is_no_job(folder):
    root = folder(LINES)
    (root / "log.jsonl").unlink()
    assert not is_job(root)
