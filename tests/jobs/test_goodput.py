"""Goodput: every second of a launch counts once, and lost steps count as time alone."""

import itertools

import pytest

from flaxformer.jobs import Job, goodput
from flaxformer.jobs.goodput import WallTime
from flaxformer.jobs.recording import record
from flaxformer.report.job import JobResults
from flaxformer.runner.events import Evaluated, Message, Profiled, Progressed, Sampled
from flaxformer.store.job_log import SPENT, read, wall_seconds
from flaxformer.training import Run


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    times = {"now": 100.0}
    monkeypatch.setattr(goodput.time, "monotonic", lambda: times["now"])
    return times


def launch(folder, clock, events, since, wall_time=None):
    """Record a launch whose events come after so many seconds each."""
    folder.mkdir(exist_ok=True)

    def passing():
        for seconds, event in events:
            clock["now"] += seconds
            yield event

    list(record(passing(), Run(), Job(output=folder), since, (), wall_time))


def chunk(step, seconds):
    return Progressed("", 1, 2, 8, step, seconds, {"loss": [1.0, 0.5]})


def results(folder):
    return JobResults(folder, {"training": {"steps": 8}}, read(folder / "log.jsonl"))


def test_every_second_counts_for_one_kind(tmp_path, clock):
    wall_time = WallTime()
    clock["now"] += 2.0
    wall_time.spend("starting")
    clock["now"] += 30.0
    wall_time.spend("compiling")
    clock["now"] += 1.0  # the initial weights
    events = [
        (4.0, Evaluated(0, {"validation_loss": 3.0})),
        (1.0, chunk(2, 0.75)),
        (5.0, Message("between")),
        (3.0, chunk(4, 2.0)),
        (7.0, Sampled(4, "a", "b")),
        (8.0, Profiled(tmp_path, 3, 4, 1.0, (), None, "cpu")),
    ]
    launch(tmp_path / "job", clock, events, 0, wall_time)
    *_, last = read(tmp_path / "job" / "log.jsonl")
    expected = {
        "starting": 3.0,
        "compiling": 30.0,
        "steps": 2.75,
        "evaluation": 4.0,
        "samples": 7.0,
        "profiling": 8.0,
        "saving": 6.25,
    }
    assert {kind: last[kind] for kind in SPENT} == pytest.approx(expected)
    assert last["elapsed"] == pytest.approx(61.0) == clock["now"] - 100.0
    assert last["goodput"] == pytest.approx(2.75 / 61)
    steps = [line for line in read(tmp_path / "job" / "log.jsonl") if line["kind"] == "steps"]
    assert [line["elapsed"] for line in steps] == pytest.approx([38.0, 46.0])
    assert [line["goodput"] for line in steps] == pytest.approx([0.75 / 38, 2.75 / 46])
    text = results(tmp_path / "job").goodput
    assert text.startswith("4.5%: 2.8 s of 1 min 01 s in training steps; starting 5%, compiling 49%, evaluation 7%")


def test_steps_that_a_kill_has_lost_count_as_time(tmp_path, clock):
    folder = tmp_path / "job"
    launch(folder, clock, [(10.0, chunk(2, 5.0)), (10.0, chunk(4, 5.0)), (10.0, chunk(6, 5.0))], 0)
    lines = [line for line in read(folder / "log.jsonl") if line["kind"] != "time"]
    assert wall_seconds(lines) == 30.0
    clock["now"] += 1000.0  # between launches
    launch(folder, clock, [(6.0, chunk(4, 5.0)), (6.0, chunk(6, 5.0))], 2)  # from the checkpoint after step 2
    launch(folder, clock, [(7.0, chunk(6, 5.0)), (7.0, chunk(8, 5.0))], 4)
    assert wall_seconds(read(folder / "log.jsonl")) == pytest.approx(30 + 12 + 14)
    job = results(folder)
    assert job.seconds == 4 * 5.0
    assert job.goodput == "35.7%: 20 s of 56 s in training steps, in 3 launches"


def test_a_log_without_times_has_no_goodput(tmp_path):
    lines = [{"kind": "steps", "step": 2, "loss": [1.0, 1.0], "seconds": 3.0}]
    assert JobResults(tmp_path, {"training": {"steps": 2}}, lines).goodput == ""


def test_time_is_a_sum_over_launches_for_every_cut_of_a_log():
    """Whatever is dropped at a launch is in its `lost`, so that all time is kept."""
    for cuts in itertools.product(range(4), repeat=2):
        lines, total = [], 0.0
        for cut in (0, *cuts):
            kept = [line for line in lines if line["step"] <= cut]
            lost = wall_seconds(lines) - wall_seconds(kept)
            lines = [*kept, {"kind": "launch", "step": cut, "lost": lost}]
            lines += [{"kind": "steps", "step": cut + n, "elapsed": 2.0 * n} for n in (1, 2, 3)]
            total += 6.0
        assert wall_seconds(lines) == pytest.approx(total)
