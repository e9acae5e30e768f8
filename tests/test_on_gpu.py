"""The items that are run on a GPU: their plan, their limits of time and size, and a tiny form of all of them."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer.study.load import load_study
from flaxformer.study.program_groups import groups

FOLDER = Path(__file__).parents[1] / "experiments" / "gpu"


@pytest.fixture
def on_gpu(monkeypatch, tmp_path):
    """The script as a module, in an empty folder, on a machine that passes for one with a GPU."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    for name in ("items", "results", "stand_ins", "on_gpu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import on_gpu

    monkeypatch.setattr(on_gpu, "check_device", lambda: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield on_gpu
    for number, handler in handlers.items():
        signal.signal(number, handler)


def script(name, *lines):
    """A file of Python, which a command of an item runs."""
    Path(name).write_text("\n".join(lines))
    return f"python {name}"


def use(monkeypatch, on_gpu, *works):
    monkeypatch.setattr(on_gpu, "ITEMS", works)


def work(on_gpu, name, *commands, **fields):
    """An item with some commands."""
    defaults = {"minutes": 1, "least": 0, "folder": on_gpu.RESULTS / name, "quick": ("",) * len(commands)}
    return on_gpu.Item(name, commands, **{**defaults, **fields})


def states(folder):
    """The states of the items in the archives of an output folder."""
    with zipfile.ZipFile(folder / "results-1.zip") as archive:
        return {name: state["state"] for name, state in json.loads(archive.read("runs/gpu/state.json")).items()}


def test_the_plan_fits_the_minutes_and_names_what_is_missing(on_gpu, capsys):
    from stand_ins import stand_ins

    assert on_gpu.main(["--minutes", "9.5", "--dry-run"]) == 0
    assert "data/shakespeare.txt is missing" in capsys.readouterr().out
    stand_ins(Path.cwd())
    on_gpu.main(["--minutes", "9.5", "--dry-run"])
    planned = capsys.readouterr().out
    begun = [line for line in planned.splitlines() if "at most" in line]
    assert [line.split()[2].strip(",") for line in begun[:2]] == ["shakespeare", "multi30k"]
    assert sum(float(line.split()[-2]) for line in begun) <= 9.5
    assert "track3: not begun" in planned
    assert "it needs 60 or more" in planned
    assert not (Path.cwd() / "runs").exists()


def test_the_files_of_every_command_are_there(on_gpu):
    root = FOLDER.parents[1]
    for item in on_gpu.ITEMS:
        assert len(item.quick) == len(item.commands)
        assert item.least <= item.minutes
        for words in on_gpu.words_of(item, quick=True):
            files = [word for word in words if word.startswith("experiments/")]
            assert all((root / word).exists() or word in item.needs for word in files), files


def test_an_item_is_interrupted_in_time_to_save_and_the_next_one_runs(on_gpu, monkeypatch):
    hanging = script(
        "hang.py",
        "import pathlib, time",
        "try: time.sleep(60)",
        "except KeyboardInterrupt: pathlib.Path('runs/gpu/hanging/saved').write_text('1')",
    )
    Path("runs/gpu/hanging").mkdir(parents=True)
    failing, fine = script("fail.py", "raise SystemExit(3)"), script("fine.py", "print('well')")
    use(
        monkeypatch,
        on_gpu,
        work(on_gpu, "hanging", hanging, minutes=0.05),
        work(on_gpu, "failing", failing, fine),
        work(on_gpu, "fine", fine),
        work(on_gpu, "long", fine, least=50),
    )
    assert on_gpu.main(["--minutes", "2", "--output", "out"]) == 1
    assert states(Path("out")) == {"hanging": "partly", "failing": "partly", "fine": "done", "long": "not begun"}
    page = Path("out/summary.md").read_text()
    assert "exit code 3" in page
    assert "well" in page.split("## fine")[1]
    assert "it needs 50 or more" in page
    assert "--only hanging failing long" in page
    with zipfile.ZipFile("out/results-1.zip") as archive:
        assert "runs/gpu/hanging/saved" in archive.namelist()


def test_what_an_earlier_call_finished_is_not_run_again(on_gpu, monkeypatch, tmp_path):
    count = script("count.py", "open('runs/gpu/counted/lines', 'a').write('x')")
    fail_once = script("once.py", "import os", "os.path.exists('runs/gpu/counted/lines') or exit(1)")
    Path("runs/gpu/counted").mkdir(parents=True)
    use(monkeypatch, on_gpu, work(on_gpu, "once", fail_once), work(on_gpu, "counted", count))
    on_gpu.main(["--output", "out"])
    assert states(Path("out")) == {"once": "partly", "counted": "done"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("count.py", "once.py"):
        (elsewhere / name).write_text(Path(name).read_text())
    monkeypatch.chdir(elsewhere)
    on_gpu.main(["--output", "out", "--earlier", str(tmp_path / "out")])
    assert states(Path("out")) == {"once": "done", "counted": "done"}
    assert Path("runs/gpu/counted/lines").read_text() == "x"
    with pytest.raises(SystemExit, match="expected the output of an earlier call"):
        on_gpu.main(["--earlier", str(elsewhere / "runs")])


def test_an_item_saves_when_the_whole_call_is_ended(on_gpu, monkeypatch):
    saving = script(
        "save.py",
        "import os, pathlib, signal, time",
        "try:",
        "    os.kill(os.getppid(), signal.SIGTERM)",
        "    time.sleep(60)",
        "except KeyboardInterrupt:",
        "    pathlib.Path('runs/gpu/saving/saved').write_text('1')",
    )
    Path("runs/gpu/saving").mkdir(parents=True)
    use(monkeypatch, on_gpu, work(on_gpu, "saving", saving), work(on_gpu, "next", script("never.py", "open('never')")))
    assert on_gpu.main(["--output", "out"]) == 0
    assert states(Path("out")) == {"saving": "partly", "next": "not begun"}
    with zipfile.ZipFile("out/results-1.zip") as archive:
        assert "runs/gpu/saving/saved" in archive.namelist()
    assert "ended from outside" in Path("out/summary.md").read_text()


def test_weights_stay_and_what_does_not_fit_is_named(on_gpu, monkeypatch):
    import results

    monkeypatch.setattr(results, "ARCHIVE", 1000)
    monkeypatch.setattr(results, "TOTAL", 2000)
    folder = Path("runs/gpu/sized")
    for name, size in (
        ("weights/a", 10),
        ("000200/b", 10),
        ("rows", 900),
        ("big", 1001),
        ("rows2", 900),
        ("last", 900),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size))
    use(monkeypatch, on_gpu, work(on_gpu, "sized", script("nothing.py", "")))
    on_gpu.main(["--output", "out"])
    sizes = []
    for file in Path("out").glob("*.zip"):
        with zipfile.ZipFile(file) as archive:
            sizes.append({entry.filename: entry.file_size for entry in archive.infolist()})
    assert all(sum(part.values()) <= 1000 for part in sizes)
    assert sum(sum(part.values()) for part in sizes) <= 2000
    names = {name for part in sizes for name in part}
    assert not any("weights" in name or "000200" in name for name in names)
    page = Path("out/summary.md").read_text()
    named = {
        name for name in ("big", "last", "rows", "rows2") if f"Left out, for want of room: {folder / name} (" in page
    }
    assert "big" in named
    assert len(named) > 1
    assert {name.rpartition("/")[2] for name in names} >= {"last", "rows", "rows2"} - named


def test_the_study_of_recall_has_fifteen_programs_and_distinct_keys():
    study = load_study(FOLDER.parent / "studies" / "recall.py")
    programs = groups(study.trials())
    assert [len(program.trials) for program in programs] == [20] * 15
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = np.asarray(jax.vmap(lambda key: study.baseline.task.replace(pairs=64, queries=1).example(key).inputs)(keys))
    pairs = drawn[:, 0:128:2]
    assert all(len(set(row)) == 64 for row in pairs.tolist())
    assert (pairs.min(), pairs.max()) > (-1, 4000)
    assert pairs.max() < 4096 <= drawn[:, 1:128:2].min()
    # Each key is in each place equally often: 500 draws in 8 ranges, four standard deviations of a count.
    counts = np.stack([np.histogram(pairs[:, place], 8, (0, 4096))[0] for place in (0, 1, 31, 63)])
    assert np.abs(counts - 500 / 8).max() < 4 * (500 / 8 * 7 / 8) ** 0.5


def test_the_shell_script_says_what_it_expects_and_runs_the_plan(tmp_path):
    def call(*words):
        command = ["bash", str(FOLDER.parent / "on_gpu.sh"), *words]
        environment = {**os.environ, "PYTHON": sys.executable}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    assert call().returncode == call("run").returncode == 2
    assert "on_gpu.sh wheels FOLDER" in call().stderr
    refused = call("run", "empty")
    assert refused.returncode == 2
    assert "which has no wheel of flaxformer" in refused.stderr
    planned = call("run", "-", "--dry-run", "--minutes", "3", "--only", "recall")
    assert "0.0 min: recall, at most 2.8 min" in planned.stdout
    assert call("with", "-", "echo", "a  b").stdout == "a  b\n"


@pytest.mark.slow
def test_every_item_ends_in_its_tiny_form(tmp_path):
    command = [sys.executable, str(FOLDER / "on_gpu.py"), "--quick", "--output", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    page = (tmp_path / "summary.md").read_text()
    assert finished.returncode == 0, page
    missing = {"catalog"} if not (FOLDER.parent / "catalog" / "effects.py").exists() else set()
    for name, state in states(tmp_path).items():
        assert state == "done" or name in missing | {"catalog"}, page
