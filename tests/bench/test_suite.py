"""Suites of benchmarks: division of the time, goals, what is written, and what is not measured."""

import dataclasses
import json
from pathlib import Path

import pytest

from flaxformer.bench import Benchmark, BenchmarkGoal, Section, Suite, Way
from flaxformer.bench.choose import load
from flaxformer.bench.goals import judge
from flaxformer.bench.page import page
from flaxformer.bench.results import Measurement
from flaxformer.bench.run import measure
from flaxformer.bench.suite import Budget
from flaxformer.cli import main

ROOT = Path(__file__).parents[2] / "experiments" / "benchmarks"
FILE = '''
"""Two sections: one with a way that hangs and one that this machine has not, one with a way that is interrupted."""
import time
from flaxformer.bench import Benchmark, BenchmarkGoal, Section, Suite, Unavailable, Way


def way(name, speed):
    def measure(work):
        if speed == "absent":
            raise Unavailable("it needs a machine of another kind")
        if speed == "hangs":
            time.sleep(600)
        if speed == "fails":
            raise RuntimeError("it is broken")
        if speed == "interrupted":
            import os, signal
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        return {{"speed": speed * work["size"]}}
    return measure


def section(**speeds):
    ways = [Way(name, way(name, speed), role="ours" if name == "ours" else "peer") for name, speed in speeds.items()]
    return Section(Benchmark(question="How fast?", ways=ways, options={{"size": (3,)}}, quick={{"size": (1,)}},
                             compared="speed", reference="ours", rounds=1))


benchmark = Suite(
    question="How fast is all of it?",
    sections={{"first": section(ours=4.0, peer=2.0, absent="absent"{first}), "second": section(ours=5.0{second})}},
    goals=[
        BenchmarkGoal("twice the peer", "first", "ours", "speed", 2.0, than="peer"),
        BenchmarkGoal("speed 13", "first", "ours", "speed", 13.0),
        BenchmarkGoal("speed 1", "second", "ours", "speed", 1.0, device="H200"),
    ],
)
'''


@pytest.fixture
def suite(tmp_path, monkeypatch, capsys):
    """Run the command on a suite; return the exit code, the output, the JSON and the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "benchmarks").mkdir()

    def call(*words, first="", second=""):
        (tmp_path / "benchmarks" / "all.py").write_text(FILE.format(first=first, second=second))
        code = main(["bench", *words, "--folder", str(tmp_path / "benchmarks"), "--output", str(tmp_path / "out")])
        captured = capsys.readouterr()
        kept = sorted((tmp_path / "out").glob("*.json"))
        text = kept[-1].with_suffix(".md").read_text() if kept else ""
        return code, captured.out + captured.err, json.loads(kept[-1].read_text()) if kept else None, text

    return call


def test_sections_are_measured_in_turn_and_written_with_their_goals(suite):
    code, said, kept, text = suite("all")
    assert code == 0
    assert list(kept["sections"]) == ["first", "second"]
    assert [goal["verdict"] for goal in kept["goals"]] == ["met", "missed", "not measured"]
    assert [goal["value"] for goal in kept["goals"]] == [2.0, 12.0, 15.0]
    assert "the goal is for H200, and this is a machine without an accelerator" in kept["goals"][2]["why"]
    assert kept["machine"]["cores"] >= 1
    assert "met: twice the peer: 2\n" in said
    assert "missed: speed 13: 12\n" in said
    for words in ("absent: not measured; it needs a machine of another kind", "ours is 2.00 × as fast as peer"):
        assert words in said
        assert words in text
    assert "| twice the peer | 2 | met |" in text
    assert "## second: How fast?" in text
    assert {path.suffix for path in Path("out").iterdir()} == {".json", ".md"}


@pytest.mark.slow
def test_options_and_sections_are_chosen_on_the_command_line(suite):
    _, _, kept, _ = suite("all", "second.size=7", "--only", "second")
    assert list(kept["sections"]) == ["second"]
    assert kept["sections"]["second"]["measurements"][0]["numbers"]["speed"] == 35.0
    assert kept["goals"][0]["why"] == "section first was not measured"
    assert kept["command"] == "flaxformer bench all second.size=7 --only second"
    assert suite("all", "--quick")[2]["sections"]["first"]["options"] == {"size": [1]}
    assert "sections first, second" in suite()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "firts"], "all has no section 'firts'; did you mean 'first'?"),
        (["size=3"], "option 'size=3' is of no section; expected such as first.OPTION=VALUE"),
        (["first.siz=3"], "first has no option 'siz'; did you mean 'size'?"),
        (["--minutes", "0"], "minutes is 0.0; expected a number above 0"),
        (["--reference", "ours"], "reference is 'ours'; all has sections, which have their own"),
    ],
)
def test_invalid_arguments_raise_clear_errors(suite, words, message):
    code, said, kept, _ = suite("all", *words)
    assert (code, kept) == (2, None)
    assert message in said


def test_a_benchmark_without_sections_has_no_time_to_divide():
    assert main(["bench", "training", "--quick", "--minutes", "3", "--folder", str(ROOT)]) == 2


def test_a_way_that_hangs_is_stopped_and_the_others_are_measured(tmp_path):
    file = tmp_path / "all.py"
    file.write_text(FILE.format(first=', hung="hangs", wrong="fails"', second=""))
    suite, _ = load(tmp_path, "all")
    benchmark = suite.sections["first"].benchmark
    ways = [benchmark.way(name) for name in ("hung", "wrong", "ours")]
    limits = iter([2.5, 500.0, 500.0])
    found = [
        event
        for event in measure(benchmark, file, ways, 1, "first", lambda left: next(limits))
        if isinstance(event, Measurement)
    ]
    hung, wrong, ours = found
    assert hung.error == "stopped after 2 s, its part of the time"
    assert wrong.error.endswith("RuntimeError: it is broken")
    assert ours.numbers["speed"] == 12.0
    text = page(suite, {"first": found}, {}, {})
    assert "- hung failed: stopped after 2 s" in text
    assert "## second\n\nNot measured." in text
    assert "| hung (failed 1 ×) |" in text


def test_an_interruption_loses_nothing(suite):
    code, said, kept, text = suite("all", second=', bad="interrupted"')
    assert code == 130
    assert len(kept["sections"]["first"]["measurements"]) == 3
    assert kept["sections"]["second"]["measurements"][0]["numbers"]["speed"] == 15.0
    assert "| twice the peer | 2 | met |" in text
    assert ".md" in said


def test_time_is_divided_by_shares_and_what_is_left_goes_on():
    now = [100.0]
    budget = Budget(60.0, {"a": 1.0, "b": 2.0, "c": 3.0}, clock=lambda: now[0])
    budget.begin("a")
    assert budget.seconds(1) == 10
    assert budget.seconds(3) == pytest.approx(20 / 3)  # twice an equal part
    assert budget.seconds(4) == budget.seconds(40) == 5  # half
    now[0] += 4
    assert budget.seconds(3) == 4
    budget.begin("b")  # of 56 s that are left, two fifths
    assert budget.seconds(1) == pytest.approx(56 * 2 / 5)
    now[0] += 50
    assert budget.seconds(1) == 0
    budget.begin("c")
    assert budget.seconds(2) == 6


def test_without_time_nothing_is_started(tmp_path):
    benchmark = Benchmark(
        question="?", ways=[Way("ours", dict, role="ours")], options={"size": (1, 2)}, compared="x", reference="ours"
    )
    found = list(measure(benchmark, tmp_path / "absent.py", benchmark.ways, 1, seconds=lambda left: 0.5 * left))
    assert [one.skipped for one in found] == ["no time was left"] * 2
    assert all(one.numbers is None and one.error is None for one in found)


def judged(goal, speeds, accelerators=(), lower=False):
    ways = [Way(name, dict, role="ours" if name == "ours" else "peer") for name in speeds]
    benchmark = Benchmark(question="?", ways=ways, options={"size": (1, 2)}, compared="x", reference="ours")
    suite = Suite(
        question="?", sections={"s": Section(dataclasses.replace(benchmark, lower_is_better=lower))}, goals=[goal]
    )
    results = {
        "s": [
            Measurement(1, {"size": size}, name, None if value is None else {"x": value * size}, error)
            for name, value in speeds.items()
            for size in (1, 2)
            for error in [None if value else "exit code 1: it is broken"]
        ]
    }
    (found,) = judge(suite, results, accelerators)
    assert page(suite, results, {}, {}).count(goal.words) == 1
    return found


GOAL = BenchmarkGoal("speed of ours", "s", "ours", "x", 3.0, point={"size": 2})


@pytest.mark.parametrize(
    ("changes", "speeds", "lower", "value", "verdict"),
    [
        ({}, {"ours": 2.0}, False, 4.0, "met"),
        ({"at_least": 4.5}, {"ours": 2.0}, False, 4.0, "missed"),
        ({"than": "peer"}, {"ours": 7.0, "a": 1.0, "b": 2.0}, False, 3.5, "met"),
        ({"than": "peer"}, {"ours": 7.0, "a": 1.0, "b": None}, False, 7.0, "met"),
        ({"than": "a"}, {"ours": 2.0, "a": 1.0, "b": 5.0}, False, 2.0, "missed"),
        ({"than": "peer"}, {"ours": 2.0, "a": 7.0, "b": 8.0}, True, 3.5, "met"),
        ({"than": "peer"}, {"ours": 2.0, "a": None}, False, None, "not measured"),
        ({}, {"ours": None, "a": 1.0}, False, None, "not measured"),
        ({"point": {"size": 9}}, {"ours": 2.0}, False, None, "not measured"),
    ],
)
def test_a_goal_is_met_missed_or_not_measured(changes, speeds, lower, value, verdict):
    found = judged(dataclasses.replace(GOAL, **changes), speeds, lower=lower)
    assert (found.value, found.verdict) == (value, verdict)
    assert bool(found.why) == (value is None)


def test_a_goal_counts_on_its_device_alone():
    goal = dataclasses.replace(GOAL, device="H200")
    assert judged(goal, {"ours": 2.0}, ["NVIDIA H200, 580.1"]).verdict == "met"
    other = judged(goal, {"ours": 2.0}, ["NVIDIA H100 80GB HBM3, 580.1"])
    assert (other.verdict, other.value) == ("not measured", 4.0)
    assert "NVIDIA H100" in other.why


def test_a_goal_of_an_unknown_way_is_refused():
    benchmark = Benchmark(question="?", ways=[Way("ours", dict)], options={"x": (1,)}, compared="x", reference="ours")
    with pytest.raises(ValueError, match="goal 'speed of ours' has way 'our'; expected one of"):
        Suite(question="?", sections={"s": Section(benchmark)}, goals=[dataclasses.replace(GOAL, way="our")])


def test_the_accelerator_suite_measures_what_its_goals_name():
    suite, _ = load(ROOT, "accelerator")
    assert list(suite.sections) == ["training", "study", "decoding", "kernels", "matmul", "compile"]
    for goal in suite.goals:
        benchmark = suite.sections[goal.section].benchmark
        assert any(goal.point.items() <= point.items() for point in benchmark.points())
        assert goal.number in benchmark.columns
    assert suite.minutes == 10


@pytest.mark.slow
def test_every_section_of_the_accelerator_suite_runs_on_a_cpu(tmp_path, capsys):
    words = ["bench", "accelerator", "--quick", "--folder", str(ROOT), "--output", str(tmp_path)]
    assert main(words) == 0, capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    for name, section in kept["sections"].items():
        ours = [one for one in section["results"] if one["compared"] and one["compared"]["median"] > 0]
        assert ours, name
    chunked = next(one for one in kept["sections"]["kernels"]["results"] if one["way"] == "chunked")
    assert chunked["numbers"]["masks"] == 7
    assert chunked["numbers"]["gradient_difference"] < 0.03
    assert {goal["verdict"] for goal in kept["goals"]} == {"not measured"}
