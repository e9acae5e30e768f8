"""A job with more steps equals an uninterrupted run of that length where the schedule allows it; else it is refused."""

import jax
import numpy as np
import pytest
from jobs.small import FILE, TEXT
from jobs.test_train import RUN, results, trained

from flaxformer.catalog.wsd_schedule import WarmupStableDecay
from flaxformer.checkpoint import Checkpoints
from flaxformer.cli import main
from flaxformer.core.paths import replace_at
from flaxformer.jobs.extension import equal_steps
from flaxformer.runner.events import Compiled, Message, Started
from flaxformer.store.job_log import read
from flaxformer.system.digests import read_document
from flaxformer.system.errors import UserError
from flaxformer.training.schedule import Constant, Cosine, InverseSqrt, Linear

WSD = WarmupStableDecay(share=0.5)


def run_of(steps, schedule):
    return replace_at(RUN, {"training.steps": steps, "optimizer.decay": schedule, "optimizer.warmup_steps": 2})


def without_early_test(found):
    """Losses, evaluations and state; without the test at the end of the shorter run."""
    losses, evaluations, state = found
    return losses, [line for line in evaluations if (line["kind"], line["step"]) != ("test", 12)], state


@pytest.mark.long
@pytest.mark.parametrize(
    ("schedule", "resumes"),
    [(Constant(), 12), (InverseSqrt(), 12), (WSD, 6)],
    ids=["constant", "inverse square root", "WSD"],
)
def test_an_extended_job_equals_an_uninterrupted_one(tmp_path, schedule, resumes):
    trained(tmp_path / "long", run_of(24, schedule))
    trained(tmp_path / "job", run_of(12, schedule))
    shorter = (tmp_path / "job/12/published.json").read_bytes()
    events = trained(tmp_path / "job", run_of(24, schedule))
    assert [type(event) for event in events[:2]] == [Message, Started]
    assert events[1] == Started(resumes)
    assert f"is extended from 12 to 24 steps: resuming after step {resumes}, " in events[0].text
    expected, found = (without_early_test(results(tmp_path / name)) for name in ("long", "job"))
    assert found == expected
    [line] = [line for line in read(tmp_path / "job/log.jsonl") if line["kind"] == "extension"]
    assert (line["step"], line["before"], line["after"], line["is_exact"]) == (resumes, 12, 24, True)
    [recorded] = read_document(tmp_path / "job/config.json")["extensions"]
    assert recorded.items() >= {name: line[name] for name in ("before", "after", "resumes", "is_exact")}.items()
    if resumes < 12:  # nothing is lost
        former = tmp_path / "job/superseded/1"
        assert (former / "12/published.json").read_bytes() == shorter
        assert [line["kind"] for line in read(former / "log.jsonl")[-2:]] == ["test", "time"]


@pytest.mark.long
@pytest.mark.parametrize("schedule", [Cosine(), Linear()], ids=["cosine", "linear"])
def test_rates_to_another_end_are_refused_unless_asked_for(tmp_path, schedule):
    trained(tmp_path, run_of(12, schedule))
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(UserError) as error:
        trained(tmp_path, run_of(18, schedule))
    text = str(error.value)
    kind = type(schedule).__name__
    assert f"holds a run of 12 steps, whose learning rates ({kind}) are not those of 18 steps after step" in text
    assert "Give --output another folder to train all 18 steps, or --extend to go on after step 12" in text
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    events = trained(tmp_path, run_of(18, schedule), extend=True)
    assert events[1] == Started(12)
    assert "an uninterrupted run of this length would differ" in events[0].text
    rates = [rate for line in read(tmp_path / "log.jsonl") if line["kind"] == "steps" for rate in line["learning_rate"]]
    expected = [_rate(schedule, step, 12 if step < 12 else 18) for step in range(18)]
    np.testing.assert_allclose(rates, expected, rtol=1e-4)


def _rate(schedule, step, steps):
    """The learning rate by hand: 2 steps of warm-up, then a cosine or a line to 0."""
    if step + 1 < 2:
        return 1e-2 * (step + 1) / 2
    progress = max(0.0, (step - 2) / (steps - 2))
    return 1e-2 * ((1 + np.cos(np.pi * progress)) / 2 if isinstance(schedule, Cosine) else 1 - progress)


@pytest.mark.parametrize(("schedule", "steps"), [(Constant(), 12), (InverseSqrt(), 12), (WSD, 8), (Cosine(), 3)])
def test_steps_with_equal_rates_are_counted(schedule, steps):
    """After 2 steps of warm-up, the peak is at step 2, from 0; WSD(0.5) leaves it after step 2 + 10 / 2."""
    assert equal_steps(run_of(12, schedule), 12, 24, 12) == steps


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("change", [{"seed": 4}, {"optimizer.beta2": 0.9}, {"model.d_model": 8}])
def test_more_steps_and_another_change_are_another_run(tmp_path, change):
    trained(tmp_path, run_of(6, Constant()))
    with pytest.raises(UserError, match=r"holds another run:\n"):
        trained(tmp_path, replace_at(run_of(12, Constant()), change))
    with pytest.raises(UserError, match=r"training.steps: 6 -> 3"):
        trained(tmp_path, replace_at(run_of(6, Constant()), {"training.steps": 3, "training.evaluate_every": None}))


@pytest.mark.long
def test_a_finished_job_says_so_at_once_and_compiles_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    (tmp_path / "text.txt").write_text(TEXT)
    words = ("train", "tiny.py", "--samples", "0")
    assert main(words) == 0
    log = (tmp_path / "runs/tiny/log.jsonl").read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", lambda *_, **__: pytest.fail("a program was compiled"))
        assert main(words) == 0
    out = capsys.readouterr().out
    assert "runs/tiny: finished: 4 of 4 steps" in out
    assert "parameters" not in out
    assert "starting; compiling" not in out
    assert (tmp_path / "runs/tiny/log.jsonl").read_bytes() == log
    assert main([*words, "training.steps=8", "--extend"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "extended from 4 to 8 steps: resuming after step 4, whose learning rate goes from 0.0025 to 0.005" in out
    assert "finished: 8 of 8 steps" in out
    assert "extended from 4 to 8 steps after step 4, with other learning rates than an uninterrupted run has" in out
    assert Checkpoints(tmp_path / "runs/tiny").steps()[-1] == 8


def test_a_damaged_end_of_a_finished_job_is_trained_again(tmp_path):
    trained(tmp_path)
    whole = results(tmp_path)
    for path in (tmp_path / "12" / "state").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    events = trained(tmp_path)
    assert events[0] == Started(6)
    assert any(isinstance(event, Compiled) for event in events)
    assert results(tmp_path) == whole
