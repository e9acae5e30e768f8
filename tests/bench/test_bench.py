"""`flaxformer bench`: order and number of measurements, ratios, and messages about missing or failing ways."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from flaxformer.bench import Benchmark, Limit, Way, Work, rate
from flaxformer.bench.choose import find, load, with_options
from flaxformer.bench.results import Measurement, conclusions, lines
from flaxformer.bench.suite import Suite
from flaxformer.cli import main

ROOT = Path(__file__).parents[2] / "experiments" / "benchmarks"
FILE = '''
"""Three ways that log when they are called, one that fails, and one whose module does not exist."""
import json, os
from flaxformer.bench import Benchmark, Limit, Way


def way(name, speed):
    def measure(work):
        with open({log!r}, "a") as log:
            log.write(json.dumps([name, work["size"], os.getpid(), str(work.scratch)]) + "\\n")
        if speed is None:
            raise RuntimeError("it is broken")
        return {{"speed": speed * work["size"], "seen": [1, 2], "first_step_seconds": work.since_start()}}
    return measure


benchmark = Benchmark(
    question="How fast?",
    ways=[
        Way("limit", way("limit", 10.0), role="limit"),
        Way("ours", way("ours", 4.0), role="ours", rehearsals=1),
        Way("broken", way("broken", None)),
        Way("peer", way("peer", 2.0), takes_part=lambda point: point["size"] < 7),
        Way("absent", way("absent", 1.0), needs=["no_such_module_17"], get="pip install such"),
        Way("given", way("given", 1.0), path="folder", get="git clone such"),
    ],
    options={{"size": (3, 5), "folder": ("",)}},
    quick={{"size": (1,)}},
    compared="speed",
    reference="peer",
    limit=Limit("speed", "limit"),
    columns={{"speed": "speed", "peak_memory_bytes": "memory, MB"}},
    along="size",
    rounds=2,
)
'''


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Run the command on a folder with one benchmark; return exit code, output, JSON, and the log of calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    folder, log = tmp_path / "benchmarks", tmp_path / "log"
    folder.mkdir()
    (folder / "speed.py").write_text(FILE.format(log=str(log)))
    (folder / "helper.py").write_text("x = 1\n")

    def call(*words):
        log.unlink(missing_ok=True)
        code = main(["bench", *words, "--folder", str(folder), "--output", str(tmp_path / "out")])
        captured = capsys.readouterr()
        kept = sorted((tmp_path / "out").glob("*.json"))
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return code, captured.out + captured.err, json.loads(kept[-1].read_text()) if kept else None, calls

    return call


@pytest.mark.long
def test_ways_take_turns_in_separate_processes(bench, tmp_path):
    code, said, kept, calls = bench("speed")
    a_round = [(way, size) for size in (3, 5) for way in ("limit", "ours", "broken", "peer")]
    assert [(way, size) for way, size, *_ in calls] == [("ours", 3), ("ours", 5), *a_round, *a_round]
    assert len({pid for *_, pid, _ in calls}) == len(calls)
    assert len({folder for way, *_, folder in calls if way == "ours"}) == 1
    # What failed is told, with its last words, and the others went on.
    assert code == 1
    assert said.count("failed: RuntimeError: it is broken") == 4
    assert "broken (failed 2 ×)" in said
    assert "absent is left out: no module no_such_module_17; pip install such" in said
    assert "given is left out: folder=PATH is not given; git clone such" in said
    assert "size 5: ours is 2.00 × as fast as peer, the fastest peer (2.00 to 2.00)" in said
    # Every raw number is kept, and where it was measured.
    measured = [one for one in kept["measurements"] if one["way"] == "ours"]
    assert [(one["round"], one["point"]["size"], one["numbers"]["speed"]) for one in measured] == [
        *((1, 3, 12.0), (1, 5, 20.0)),
        *((2, 3, 12.0), (2, 5, 20.0)),
    ]
    assert measured[0]["numbers"]["seen"] == [1, 2]
    assert 0 < measured[0]["numbers"]["first_step_seconds"] < 60
    assert kept["machine"]["cores"] >= 1
    assert kept["machine"]["versions"]["jax"]
    assert kept["command"] == "flaxformer bench speed"
    assert len(kept["left_out"]) == 2
    (line,) = [one for one in kept["results"] if (one["way"], one["point"]["size"]) == ("ours", 5)]
    assert (line["ratio"]["median"], line["share"]["median"]) == (2.0, 0.4)
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".svg", ".png"}


def test_command_line_selects_options_ways_and_rounds(bench):
    code, said, kept, calls = bench("speed", "size=7", "--only", "ours", "limit", "peer", "--rounds", "1", "folder=x")
    assert code == 0
    assert [call[:2] for call in calls] == [["ours", 7], ["limit", 7], ["ours", 7]]
    assert "× peer" not in said  # nothing is compared with what was not measured
    assert kept["command"] == "flaxformer bench speed size=7 --rounds 1 --only ours limit peer"
    assert bench("speed", "--quick", "--only", "peer")[3][0][:2] == ["peer", 1]
    assert "How fast?" in bench()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sped"], "no benchmark is called 'sped'; did you mean 'speed'?"),
        (["speed", "siz=3"], "speed has no option 'siz'; did you mean 'size'?"),
        (["speed", "size=large"], "size is 'large'; expected int"),
        (["speed", "--only", "our"], "speed has no way 'our'; did you mean 'ours'?"),
        (["speed", "--only", "absent"], "speed has no implementation left to measure"),
        (["speed", "--reference", "pear"], "reference is 'pear'; did you mean 'peer'?"),
        (["speed", "--rounds", "0"], "rounds is 0; expected a number at least 1"),
    ],
)
def test_invalid_arguments_raise_clear_errors(bench, words, message):
    code, said, kept, _ = bench(*words)
    assert code == 2
    assert message in said
    assert kept is None


def of_rounds(**speeds):
    benchmark = Benchmark(
        question="?",
        ways=[Way(name, dict, role="ours" if name == "ours" else "peer") for name in speeds],
        options={"size": (1,)},
        compared="speed",
        reference="peer",
        limit=Limit("speed", "peer"),
    )
    measurements = [
        Measurement(number, {"size": 1}, name, None if speed is None else {"speed": speed})
        for name, own in speeds.items()
        for number, speed in enumerate(own, 1)
    ]
    return benchmark, measurements


def test_ratios_are_within_rounds():
    benchmark, measurements = of_rounds(ours=[10.0, 90.0, 40.0], peer=[10.0, 20.0, 30.0])
    ours, peer = lines(benchmark, measurements)
    assert (ours.compared.median, peer.compared.median) == (40, 20)
    assert (ours.ratio.median, ours.ratio.low, ours.ratio.high) == (40 / 30, 1, 4.5)
    assert ours.share == ours.ratio
    assert peer.share is None
    slower = lines(dataclasses.replace(benchmark, lower_is_better=True), measurements)[0]
    assert (slower.ratio.median, slower.ratio.low, slower.ratio.high) == (30 / 40, 20 / 90, 1)


def test_failed_round_is_excluded():
    benchmark, measurements = of_rounds(ours=[10.0, 90.0, 40.0], peer=[10.0, None, 30.0])
    ours, peer = lines(benchmark, measurements)
    assert (ours.ratio.rounds, ours.ratio.high, peer.errors) == (2, 40 / 30, 1)
    benchmark, measurements = of_rounds(ours=[None], peer=[1.0])
    assert conclusions(benchmark, measurements) == []


def test_conclusion_compares_with_the_fastest_peer():
    benchmark, measurements = of_rounds(ours=[6.0, 6.0], peer=[1.0, 1.0], faster=[4.0, 2.0])
    (said,) = conclusions(benchmark, measurements)
    assert said == "ours is 2.25 × as fast as faster, the fastest peer (1.50 to 3.00)"


def test_rate_waits_for_asynchronous_work_and_excludes_compilation(monkeypatch):
    now, queued = [0.0], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    calls = []

    def call():  # compiles for 100 s the first time; then asks at once for half a second of work
        calls.append(now[0])
        now[0] += 100.0 if len(calls) == 1 else 0.001
        queued[0] += 0.5

    def ready(_):
        now[0], queued[0] = now[0] + queued[0], 0.0

    found = rate(Work({}, Path(), -1.0), call, units=3, name="per_second", ready=ready, seconds=6)
    assert found["per_second"] == pytest.approx(3 / 0.501)
    assert found["first_step_seconds"] == pytest.approx(101.5)
    assert len(found["per_second_windows"]) == 3
    assert len(calls) == 3 + 3 * found["calls"]


@pytest.mark.parametrize("name", ["calls", "first_step_seconds"])
def test_a_rate_has_a_name_of_its_own(name):
    with pytest.raises(ValueError, match=f"name is '{name}', which the result has already"):
        rate(Work({}, Path(), 0.0), lambda: None, units=1, name=name)


def test_peak_memory_is_that_of_one_way(bench):
    held = bytearray(b"x") * 300_000_000  # a process that is started inherits the mark of the one that starts it
    kept = bench("speed", "--only", "peer", "--quick")[2]
    assert len(held) == 300_000_000
    assert 1e6 < kept["measurements"][0]["numbers"]["peak_memory_bytes"] < 100e6


def test_errors_in_benchmark_files_are_located(tmp_path):
    options = {"question": "?", "options": {"size": (1,)}, "compared": "speed"}
    with pytest.raises(ValueError, match="reference is 'b'; expected one of the ways"):
        Benchmark(ways=[Way("a", dict)], reference="b", **options)
    with pytest.raises(ValueError, match="expected different names"):
        Benchmark(ways=[Way("a", dict), Way("a", dict)], reference="a", **options)
    with pytest.raises(ValueError, match="quick has"):
        Benchmark(ways=[Way("a", dict)], reference="a", quick={"siz": (1,)}, **options)
    (tmp_path / "wrong.py").write_text("x = 1\nbenchmark = 1 / 0\n")
    with pytest.raises(ValueError, match="line 2: ZeroDivisionError"):
        load(tmp_path, "wrong")
    with pytest.raises(ValueError, match="holds no benchmarks"):
        find(tmp_path / "nowhere")


NAMES = sorted(find(ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_file_loads(name):
    found, _ = load(ROOT, name)
    benchmarks = [section.benchmark for section in found.sections.values()] if isinstance(found, Suite) else [found]
    assert any(way.role == "ours" for benchmark in benchmarks for way in benchmark.ways)
    for benchmark in benchmarks:
        assert benchmark.along in ("", *benchmark.options)
        assert list(with_options(benchmark, [], quick=True).points())


def test_flops_equal_the_count_of_the_package(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    ours, sizes = importlib.import_module("ours"), importlib.import_module("sizes")
    from flaxformer.jobs.peak import model_flops

    size = dataclasses.replace(sizes.SIZES["tiny"], layers=3, length=11, batch=5, width=14, vocabulary=257)
    assert size.flops_per_token * size.tokens == model_flops(ours.run_of(size))
    for name in ("ours", "sizes"):
        sys.modules.pop(name)


SMALLEST = {
    "catalog": ["mechanism=Mamba2,MixtureOfExperts"],
    "compile": ["depth=1"],
    "first_loss": ["--only", "train", "train-cached", "--reference", "train"],
    "first_step": ["--only", "now", "now-cached", "--reference", "now"],
    "folders": ["--only", "help", "status"],
    "growth": ["size=1", "--only", "flaxformer", "jax-scanned", "--reference", "jax-scanned"],
    "scaling": ["axis=width,trials,cores", "factor=1,2", "--only", "flaxformer", "flaxformer-mesh"],
    "study": ["--only", "study-1", "one-compilation", "processes-cached"],
    "training": ["size=tiny", "seconds=0.05"],
    "workers": ["--only", "one-device"],
}


LONGEST = {"compile", "decoding", "scaling", "workers"}
OF_ACCELERATORS = {"cudnn", "splash", "tokamax"}
"""Ways that are not measured on a CPU."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in LONGEST else pytest.mark.slow)
        for name in NAMES
        if name != "accelerator"  # see test_suite.py
    ],
)
def test_every_benchmark_runs_in_its_quick_form(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["bench", name, "--quick", "--folder", str(ROOT), "--output", str(tmp_path), *SMALLEST.get(name, [])]
    assert main(words) == 0, capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert {one["way"] for one in kept["measurements"] if not one["numbers"]} <= OF_ACCELERATORS
    assert any(line["compared"]["median"] > 0 for line in kept["results"] if line["compared"])
