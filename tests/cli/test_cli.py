"""The command line: every mistake of a user ends in one sentence that helps, and in exit code 2."""

import os
import signal
from types import SimpleNamespace

import jax
import polars as pl
import pytest
from study.tiny import FILE, cache_folder, fill, kept_programs, tiny

from flaxformer.cli import main
from flaxformer.cli.arguments import Plan
from flaxformer.cli.study import load
from flaxformer.devices import sharding
from flaxformer.runner import launch, remaining
from flaxformer.runner.program import Program
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store
from flaxformer.study.plan import declaration
from flaxformer.system import startup


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    before = signal.getsignal(signal.SIGTERM)
    with kept_programs(cache_folder(tmp_path_factory)):
        yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with the tiny study's file; returns exit code, output and errors, unwrapped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tiny.py").write_text(FILE)

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, " ".join(out.split()), " ".join(err.split())

    return call


@pytest.fixture
def complete(tmp_path):
    """A folder in which every run of the tiny study is done."""
    return fill(
        tmp_path / "done", tiny(), lambda trial: 2.0 - 0.1 * trial.seed - (trial.arm.labels["rate"] == "high")
    ).root


def refused(result, *words):
    code, out, err = result
    assert code == 2, (out, err)
    assert err.startswith("error: ")
    missing = [word for word in words if word not in err]
    assert not missing, err


BROKEN = {
    "syntax": ("x = 1\nstudy = Study(\n", ["broken.py", "line 2", "never closed"]),
    "type": ("\n\nlen(3)\n", ["broken.py", "line 3", "TypeError", "no len()"]),
    "name": ("study = Study()\n", ["broken.py", "line 1", "NameError", "Study"]),
    "import": ("import numpyy\n", ["broken.py", "line 1", "numpyy"]),
    "in a function": ("def f():\n    return 1 / 0\n\nf()\n", ["broken.py", "line 2", "ZeroDivisionError"]),
    "no study": ("x = 1\n", ["broken.py", "no `study`", "study = Study(...)"]),
    "another study": ("study = 3\n", ["broken.py", "no `study`", "found 3"]),
    "claim": (
        FILE.replace('equal={"norm"', 'equal={"nrm"'),
        ["broken.py", "line 8", "pre and post are alike", "nrm", "'norm'"],
    ),
    "form of claim": (FILE.replace(", within=0.5", ""), ["broken.py", "line 28", "pre and post are alike", "within"]),
    "path": (FILE.replace("model.norm", "model.nrm"), ["broken.py", "model.nrm", "'norm'"]),
    "field": (FILE.replace("d_ff=11", "dff=11"), ["broken.py", "line 12", "dff", "'d_ff'"]),
    "value": (FILE.replace("heads=2", "heads=3"), ["broken.py", "line 12", "heads is 3", "divisor of d_model 8"]),
}


@pytest.mark.parametrize("which", ["plan", "run"])
@pytest.mark.parametrize(("text", "words"), BROKEN.values(), ids=BROKEN)
def test_an_error_in_a_study_file_names_file_line_and_reason(command, tmp_path, which, text, words):
    (tmp_path / "broken.py").write_text(text)
    refused(command(which, "broken.py"), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("which", ["plan", "run"])
@pytest.mark.parametrize("name", ["absent.py", ".", "notes.txt"])
def test_a_file_that_is_no_study_file_is_refused(command, tmp_path, which, name):
    (tmp_path / "notes.txt").write_text("study")
    refused(command(which, name), f"'{name}'", "expected", "`study`")


MISTAKES = {
    "unknown part": ("modle.layers=2", ["modle", "'model'"]),
    "unknown field": ("model.layrs=2", ["model.layrs", "'layers'"]),
    "not an integer": ("model.layers=two", ["layers", "'two'", "int"]),
    "a float": ("model.layers=1.5", ["layers", "1.5", "int"]),
    "not a number": ("optimizer.beta1=big", ["beta1", "'big'", "float"]),
    "out of bounds": ("optimizer.beta1=1.5", ["beta1", "1.5", "below 1"]),
    "no such choice": ("model.feed_forward.activation=rleu", ["activation", "rleu", "'relu'"]),
    "no such name": ("model.norm=pots", ["model.norm", "pots", "'post'"]),
    "no such class": ("model.positions=Sinusodial", ["model.positions", "'Sinusoidal'"]),
    "no such argument": ("model.positions=Sinusoidal(bas=2)", ["Sinusoidal", "bas", "'base'"]),
    "not literal": ("model.positions=Sinusoidal(base=open)", ["model.positions", "Sinusoidal"]),
    "below a number": ("model.layers.x=1", ["model.layers.x", "no field"]),
    "fields at odds": ("training.evaluate_every=4", ["evaluate_every is 4", "divisor of steps 6"]),
    "too small a vocabulary": ("task.symbols=9", ["vocabulary is 6", "10 tokens"]),
    "no baseline for a claim": ("optimizer.learning_rate=0.5", ["claim", "rate", "baseline"]),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_an_override_that_makes_no_sense_is_refused(command, tmp_path, text, words):
    refused(command("run", "tiny.py", text), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", 99], ["devices is 99", "at most 2"]),
        (["--devices", 0], ["devices is 0", "at least 1"]),
        (["--chunk-steps", 0], ["chunk_steps is 0", "at least 1"]),
        (["--group-size", -1], ["group_size is -1", "at least 1"]),
        (["--group-size", 2, "--exact"], ["group_size is 2 and exact", "expected 1"]),
        (["--mesh", "data=3"], ["mesh is data=3", "at most 2 devices"]),
        (["--mesh", "rows=2"], ["mesh is 'rows=2'", "data=4,tensor=2"]),
        (["--seeds", 0], ["seeds", "at least one"]),
    ],
)
@pytest.mark.parametrize("which", ["plan", "run"])
def test_options_out_of_bounds_are_refused(command, which, arguments, words):
    refused(command(which, "tiny.py", *arguments), *words)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["report"],
        ["run", "tiny.py", "--sedes", "3"],
        ["run", "tiny.py", "--seeds", "x"],
        ["run", "tiny.py", "model.layers"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read_exits_with_2(command, arguments):
    code, out, err = command(*arguments)
    assert code == 2
    assert out + err


def test_results_of_another_recipe_are_not_mixed(command, complete):
    before = {path: path.read_bytes() for path in complete.rglob("*") if path.is_file() and path.name != ".lock"}
    refused(
        command("run", "tiny.py", "optimizer.beta2=0.99", "--output", complete),
        str(complete), "another recipe", "optimizer.beta2: 0.98 -> 0.99", "--output",
    )  # fmt: skip
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_that_another_process_holds_is_refused(command, tmp_path, monkeypatch):
    for module in (launch, remaining):
        monkeypatch.setattr(module, "LOCK_PATIENCE", 0.0)
    with Store(tmp_path / "held").locked():
        refused(command("run", "tiny.py", "--output", "held"), "held", "another process", "--output")


@pytest.mark.parametrize("name", ["empty", "absent", "tiny.py"])
def test_a_report_on_a_folder_without_a_study_is_refused(command, tmp_path, name):
    (tmp_path / "empty").mkdir()
    refused(command("report", name), name, "no folder" if name == "absent" else "study")


def test_a_report_on_a_study_without_a_run_is_refused(command, tmp_path):
    fill(tmp_path / "declared", tiny(), lambda trial: 1.0)
    for path in (tmp_path / "declared" / "groups").iterdir():
        path.unlink()
    refused(command("report", "declared"), "declared", "no finished run")


def test_a_study_that_is_complete_is_reported_and_not_trained(command, complete):
    code, out, _ = command("run", "tiny.py", "--output", complete)
    assert code == 0
    assert "0 runs to train, 12 already finished" in out
    for part in ("Does it run?", "high is better than low", "inconclusive", "Limit: "):
        assert part in out
    table = pl.read_parquet(complete / "results.parquet")
    assert [trial.name for trial in tiny().trials()] == table["trial"].to_list()
    assert table["fingerprint"].n_unique() == 12


def test_a_report_says_the_same_again(command, complete):
    code, first, _ = command("report", complete)
    page = (complete / "report.html").read_bytes()
    assert code == 0
    assert command("report", complete) == (0, first, "")
    assert (complete / "report.html").read_bytes() == page
    for part in (b"Does it run?", b"It is tiny.", b"<svg"):
        assert part in page


def test_a_report_on_part_of_a_study_says_what_is_missing(command, tmp_path):
    fewer, all_seeds = tiny(seeds=range(2)), tiny()
    store = fill(tmp_path / "part", fewer, lambda trial: 1.0 + 0.1 * trial.seed)
    declare(store, declaration(all_seeds))
    code, out, _ = command("report", "part")
    assert code == 0
    assert "4 of 12 runs are missing" in out


def broken(*_):
    raise RuntimeError("no luck today")


@pytest.mark.every(2)
@pytest.mark.parametrize("cause", [broken, jax.jit(lambda *_: broken())], ids=["outside jit", "inside jit"])
def test_failed_runs_exit_with_1_and_say_why(command, complete, monkeypatch, cause):
    monkeypatch.setattr(Program, "__init__", lambda *_: cause())
    code, out, err = command("run", "tiny.py", "--seeds", 4, "--output", complete)
    assert code == 1
    assert "4 runs failed" in out
    assert "4 failed: 4 × RuntimeError: no luck today" in " ".join(out.split())
    assert err == ""


def test_plan_counts_before_anything_is_trained(command, tmp_path):
    code, out, err = command("plan", "tiny.py", "--seeds", 4)
    assert (code, err) == (0, "")
    for part in (
        "Does it run?",
        "4 arms × 4 seeds = 16 runs",
        "2 compiled programs",
        "2 devices",
        "16 to train",
        "3 claims",
    ):
        assert part in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "expected"), [("2", (0, 1)), ("1000:1003", (1000, 1001, 1002)), ("3,5", (3, 5))])
def test_seeds_are_a_number_a_range_or_a_list(tmp_path, text, expected):
    (tmp_path / "tiny.py").write_text(FILE)
    study, _ = load(Plan(tmp_path / "tiny.py", seeds=text))
    assert study.seeds == expected


def test_plan_lists_axes_that_are_replicated_on_a_mesh(command, monkeypatch):
    arguments = ("plan", "tiny.py", "--seeds", 1, "--mesh", "fsdp=2")
    assert "Replicated" not in command(*arguments)[1]
    monkeypatch.setitem(sharding.RULES, "d_ff", "fsdp")
    words = " ".join(command(*arguments)[1].split())
    assert words.count("Replicated on the mesh: ") == 2
    assert "blocks/feed_forward/up: d_ff, since d_model is sharded along fsdp." in words


def test_overrides_and_seeds_change_the_study(command, complete, tmp_path):
    overrides = ("model.layers=2", "model.norm=post", "optimizer.clip=1")
    study, execution = load(Plan(tmp_path / "tiny.py", overrides, seeds="2", chunk_steps=7))
    assert (study.baseline.model.layers, study.baseline.optimizer.clip) == (2, 1.0)
    assert {labels["norm"] for _, labels in study.contrasts()[0].terms} == {"post"}
    assert (study.seeds, execution.chunk_steps) == ((0, 1), 7)


def test_a_study_file_may_define_classes(command, tmp_path, complete):
    head = "from __future__ import annotations\nimport dataclasses\n\n"
    (tmp_path / "classes.py").write_text(head + "@dataclasses.dataclass\nclass Size:\n    width: int\n" + FILE)
    code, out, err = command("run", "classes.py", "--output", complete)
    assert (code, err) == (0, "")
    assert "Does it run?" in out


def test_the_command_runs_where_jax_has_started_with_other_devices(command, complete, monkeypatch):
    assert jax.device_count() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    assert command("report", complete)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["plan", "run", "report"]),
        (
            ["plan"],
            ["FILE", "PATH=VALUE", "--seeds", "--output", "--devices", "--group-size", "--chunk-steps", "--layout"],
        ),
        (
            ["run"],
            ["FILE", "PATH=VALUE", "--seeds", "--output", "--devices", "--group-size", "--chunk-steps", "--layout"],
        ),
        (["report"], ["DIR"]),
    ],
    ids=["all", "plan", "run", "report"],
)
def test_help_names_every_argument(command, arguments, words):
    code, out, err = command(*arguments, "--help")
    assert (code, err) == (0, "")
    assert [word for word in words if word not in out] == []


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """JAX as it is before anything is set, and what is then set."""
    found = {}
    values = {"jax_compilation_cache_dir": None, "jax_enable_compilation_cache": True}
    config = SimpleNamespace(values=values, update=found.__setitem__)
    monkeypatch.setattr(startup, "jax", SimpleNamespace(config=config))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def test_compiled_programs_are_kept_in_a_folder_of_the_user_alone(settings, tmp_path):
    startup.keep_compiled_programs()
    (folder,) = (tmp_path / "flaxformer").iterdir()
    assert settings["jax_compilation_cache_dir"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_of_kept_programs_the_oldest_go_first(settings, tmp_path, monkeypatch):
    startup.keep_compiled_programs()
    (folder,) = (tmp_path / "flaxformer").iterdir()
    for age in range(5):
        (folder / f"{age}-cache").write_bytes(bytes(10))
        os.utime(folder / f"{age}-cache", (1000 - age, 1000 - age))
    monkeypatch.setattr(startup, "MAX_BYTES", 35)
    startup.keep_compiled_programs()
    assert sorted(os.listdir(folder)) == ["0-cache", "1-cache", "2-cache"]


def test_a_place_that_cannot_be_written_to_is_no_obstacle(settings, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    startup.keep_compiled_programs()
    assert settings == {}
