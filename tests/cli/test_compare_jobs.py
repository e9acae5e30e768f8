"""Two training jobs are compared by scores, configs and curves, here from logs that are written by hand."""

import pytest
from study.tiny import fill, tiny

from flaxformer.cli import main
from flaxformer.system import digests
from flaxformer.system.digests import write_document


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that writes the folder of a job with a loss of `losses` at each step that is evaluated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def write(name, losses, tokens=10, flops=100, test=None, **run):
        folder = tmp_path / name
        folder.mkdir()
        last = max(losses)
        config = {"training": {"steps": last}, "task": {"kind": "Copy"}, **run}
        write_document(folder / "config.json", {"format": 2, "run": config})
        launch = {"parameters": 1234, "flops_per_step": flops, "tokens_per_step": tokens, "device": "cpu", "devices": 1}
        lines = [{"kind": "launch", "step": 0, **launch, "peak": None}]
        lines += [{"kind": "evaluation", "step": step, "validation_loss": loss} for step, loss in losses.items()]
        lines += [] if test is None else [{"kind": "test", "step": last, "test_loss": test, "test_loss_se": 0.1}]
        (folder / "log.jsonl").write_bytes(b"".join(map(digests.line, lines)))
        return str(folder)

    return write


def words(capsys, *arguments):
    code = main(["compare", *arguments])
    out, err = capsys.readouterr()
    return code, [" ".join(line.split()) for line in out.splitlines()], err


def test_scores_configs_and_curves_stand_side_by_side(job, capsys):
    a = job("a", {0: 5.0, 10: 3.0, 20: 2.0}, test=2.25, optimizer={"learning_rate": 0.01})
    b = job("b", {0: 5.0, 5: 4.0, 15: 2.0, 25: 3.0}, test=2.0, optimizer={"learning_rate": 0.02})
    code, lines, _ = words(capsys, a, b)
    assert code == 0
    assert "optimizer.learning_rate: 0.01 -> 0.02" in lines
    assert "training.steps: 20 -> 25" in lines
    assert "last validation loss 2 (step 20) 3 (step 25) +1" in lines
    assert "best validation loss 2 (step 20) 2 (step 15) 0" in lines
    assert "test loss 2.25 2 -0.25" in [line.replace("−", "-") for line in lines]
    # B at 10 steps is halfway between 4 at 5 and 2 at 15; at 20, between 2 at 15 and 3 at 25.
    assert "10 3 3 (interpolated) 0" in lines
    assert "20 2 2.5 (interpolated) +0.5" in lines
    assert not any(line.startswith(("at equal tokens", "at equal FLOPs")) for line in lines)
    assert any("No verdict: each job is a single seed" in line for line in lines)


def test_jobs_of_other_cost_are_compared_at_equal_tokens_and_flops_too(job, capsys):
    a = job("a", {0: 5.0, 10: 3.0, 20: 1.0}, tokens=10, flops=100)
    b = job("b", {0: 5.0, 10: 3.0, 20: 1.0}, tokens=20, flops=400, task={"kind": "Other"})
    _, lines, _ = words(capsys, a, b)
    starts = {
        name: next(n for n, line in enumerate(lines) if line.startswith(f"at equal {name}"))
        for name in ("steps", "tokens", "FLOPs")
    }
    rows = lines[starts["tokens"] :][:6]
    assert "200 1 3 +2" in rows  # 200 tokens are 20 steps of A and 10 of B
    assert "100 3 4 (interpolated) +1" in rows
    rows = " ".join(lines[starts["FLOPs"] :][:6])
    assert "2 kFLOP 1 4 (interpolated) +3" in rows or "2.0 kFLOP 1 4 (interpolated) +3" in rows
    assert any("The tasks differ" in line for line in lines)


def test_a_job_without_evaluations_is_shown_without_scores(job, capsys, tmp_path):
    a, b = job("a", {0: 5.0, 10: 3.0}), job("b", {0: float("nan"), 10: float("nan")})
    code, lines, _ = words(capsys, a, b)
    assert code == 0
    assert "last validation loss 3 (step 10) – (step 10) –" in lines
    assert "best validation loss 3 (step 10) – –" in lines


def test_a_job_and_a_study_are_not_compared(job, capsys, tmp_path):
    a = job("a", {0: 5.0, 10: 3.0})
    fill(tmp_path / "study", tiny(), lambda trial: 1.0)
    for pair in ((a, "study"), ("study", a)):
        code, _, err = words(capsys, *pair)
        assert (code, "expected two studies, or two training jobs" in " ".join(err.split())) == (2, True)
    code, _, err = words(capsys, a, a, "--table", "x.parquet")
    assert (code, "--table stands with training jobs; expected two studies" in " ".join(err.split())) == (2, True)
