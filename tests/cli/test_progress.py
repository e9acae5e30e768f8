"""Progress in a pipe: what is compiled, lines at an interval; and how commands end when a signal comes."""

import io
import signal

import pytest
from rich.console import Console
from study.tiny import FILE, cache_folder, kept_programs, tiny

from flaxformer.checkpoint import stop_on_signals
from flaxformer.cli import main, train
from flaxformer.jobs import progress
from flaxformer.jobs.progress import Totals, follow
from flaxformer.runner.events import Compiled, Compiling, Finished, Message, Progressed, Started
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.study.program_cost import Cost
from flaxformer.study.program_groups import groups
from flaxformer.system.interrupts import SIGNALS, interrupt_on_signals, raise_if_interrupted


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def console():
    return Console(width=80, record=True, file=io.StringIO())


@pytest.mark.long
def test_each_program_is_announced_once_before_it_is_compiled():
    study = tiny(seeds=range(2))
    events = list(execute(groups(study.trials()), Execution()))
    announced = [event for event in events if isinstance(event, Compiling)]
    assert sorted((event.number, event.programs) for event in announced) == [(1, 2), (2, 2)]
    assert {event.group for event in announced} == {group.name for group in groups(study.trials())}
    for event in announced:
        compiled = [i for i, own in enumerate(events) if isinstance(own, Compiled) and own.group == event.group]
        assert events.index(event) < min(compiled)


def test_a_pipe_gets_a_line_per_program_and_lines_between_results(monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    events = [
        Compiling("norm=pre", 1, 1),
        Compiled("norm=pre", "cpu:0", 1.0),
        *[Progressed("norm=pre", 1, 25, 500)] * 4,
        Finished("norm=pre", {"status": "done"}),
        Message("a warning"),
    ]
    out = console()
    assert follow(events, out, Totals(runs=1, steps=100)) == 0
    lines = out.export_text().splitlines()
    assert lines[0] == "compiling norm=pre (1 of 1)"
    shares = [line.split(", ")[1] for line in lines if line.startswith("0/1 runs")]
    assert shares == ["25 % of the steps", "50 % of the steps", "75 % of the steps", "100 % of the steps"]
    assert any(line.startswith("1/1 runs, 100 % of the steps") for line in lines)
    assert "a warning" in lines


def test_failed_runs_are_counted():
    events = [Finished("norm=pre", {"status": "failed"}), Finished("norm=pre", {"status": "done"})]
    out = console()
    assert follow(events, out, Totals(runs=2, steps=10)) == 1
    assert "2/2 runs, 1 failed" in out.export_text()


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_training_with_130_after_the_chunk(tmp_path, monkeypatch, capsys, number):
    def stopped(run, job, stop):
        yield Started(0)
        signal.raise_signal(number)
        assert stop.is_requested
        yield Progressed("", 1, 3, 60, 3, 0.1, {"loss": [1.5]})

    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text(FILE + "run = study.baseline\n")
    monkeypatch.setattr(train, "cost_of_run", lambda run: Cost(1, 1.0, 1, 1.0, 1.0))
    monkeypatch.setattr(train, "train", stopped)
    assert main(["train", "one.py"]) == 130
    out = " ".join(capsys.readouterr().out.split())
    assert f"Incomplete: stopped by {number.name}; the same command resumes" in out


@pytest.mark.every(5, "long")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_a_study_with_130(tmp_path, monkeypatch, capsys, number):
    def stopped(*arguments, **settings):
        signal.raise_signal(number)
        yield

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    monkeypatch.setattr("flaxformer.cli.run.run_plan", stopped)
    assert main(["run", "tiny.py"]) == 130
    assert "run the same command again" in " ".join(capsys.readouterr().err.split())
    raise_if_interrupted()  # the next study of this process is not interrupted


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        interrupt_on_signals()
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_another_recipe_is_refused_before_anything_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    assert main(["run", "tiny.py", "--seeds", "1", "--output", "out"]) == 0
    capsys.readouterr()
    for words in ((), ("--launcher", "local")):
        monkeypatch.setattr("flaxformer.cli.launcher.jax.config.update", lambda *_: None)
        assert main(["run", "tiny.py", "optimizer.beta2=0.99", "--seeds", "1", "--output", "out", *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "another recipe" in err
