"""A study that is killed, however often and whenever, ends with the table that it would have had without."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from study.tiny import FILE, INCIDENTAL, cache_folder

from flaxformer.store.store import Store

LONGER = ["training.steps=3000", "training.evaluate_every=1500", "--chunk-steps", "50"]
"""So that a kill comes in the middle of something."""
RUNS = 12


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Start the command, with programs compiled once for all launches."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder(tmp_path_factory)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "COLUMNS": "200",
    }

    def start(folder, *arguments):
        command = [sys.executable, "-m", "flaxformer.cli", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=folder, env=environment, **pipes)

    return start


def study_folder(folder):
    (folder / "tiny.py").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory, launch):
    """A folder in which the longer study ran without interruption."""
    folder = study_folder(tmp_path_factory.mktemp("reference"))
    assert f"{RUNS} runs" in finish(launch, folder)
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory, launch):
    """A folder in which the study ran, with few steps."""
    folder = study_folder(tmp_path_factory.mktemp("short"))
    assert f"{RUNS} runs" in finish(launch, folder, words=())
    return folder


def table(folder):
    return pl.read_parquet(folder / "runs" / "tiny" / "results.parquet")


def same_results(folder, reference):
    """The same trials, once each, in the same order, with bitwise equal results."""
    ours, theirs = (table(one).drop(INCIDENTAL) for one in (folder, reference))
    assert theirs["trial"].n_unique() == theirs.height == RUNS
    assert set(theirs["status"]) == {"done"}
    assert ours.to_dicts() == theirs.to_dicts()


def rows(folder):
    return Store(folder / "runs" / "tiny").rows()


def on_disk(folder):
    """How many runs are finished, while a study is under way."""
    groups = folder / "runs" / "tiny" / "groups"
    count = 0
    for path in [*groups.glob("*.jsonl"), *groups.glob("*.parquet")]:
        try:
            count += path.read_bytes().count(b"\n") if path.suffix == ".jsonl" else RUNS // 2
        except FileNotFoundError:
            continue
    return count


def wait_for(process, folder, more):
    """Wait until so many more runs are on disk, or the process is done."""
    wanted = min(on_disk(folder) + more, RUNS - 1)
    while process.poll() is None and on_disk(folder) < wanted:
        time.sleep(0.01)


def kill(process, number):
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return err


def finish(launch, folder, *more, words=LONGER):
    """Run once more, to the end; returns what was printed."""
    process = launch(folder, "run", "tiny.py", *words, *more)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in out + err
    return out


def killed_and_resumed(launch, folder, reference, seed, kills):
    """Kill -9 at seeded moments: soon after the start, or some runs later, in the middle of another."""
    chance, kept = random.Random(seed), {}
    for more in kills:
        process = launch(folder, "run", "tiny.py", *LONGER)
        wait_for(process, folder, more)
        time.sleep(chance.uniform(0, 0.3 if more else 3))
        kill(process, signal.SIGKILL)
        now = rows(folder)
        assert kept.items() <= now.items()
        kept = now
    out = finish(launch, folder)
    assert f"{RUNS - len(kept)} runs" in out
    assert kept.items() <= rows(folder).items()
    same_results(folder, reference)
    assert not list((folder / "runs" / "tiny" / "groups").glob("*.jsonl"))
    return kept


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_table(launch, reference, tmp_path):
    kept = killed_and_resumed(launch, study_folder(tmp_path), reference, seed=0, kills=[0, 1, 4])
    assert 0 < len(kept) < RUNS


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 5))
def test_killed_and_resumed_often_gives_the_same_table(launch, reference, tmp_path, seed):
    kills = random.Random(seed).choices([0, 1, 2, 3], k=7)
    killed_and_resumed(launch, study_folder(tmp_path), reference, seed, kills)


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)],
)
def test_a_study_killed_in_training_or_saving_resumes_in_the_middle_of_a_run(launch, reference, tmp_path, number):
    folder, chance = study_folder(tmp_path), random.Random(number)
    often, found = ("--save-minutes", "0.003"), ""
    saves = folder / "runs" / "tiny" / "unfinished"

    def published():
        return set(saves.glob("*/*/*/published.json"))

    for _ in range(4):
        before = published()
        process = launch(folder, "run", "tiny.py", *LONGER, *often)
        while process.poll() is None and published() <= before:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        found += out
    found += finish(launch, folder, *often)
    assert found.count("resumed from step") >= 3
    same_results(folder, reference)
    assert not saves.exists()


@pytest.mark.slow
def test_a_study_stopped_by_a_signal_exits_with_130_and_resumes_later(launch, reference, tmp_path):
    folder = study_folder(tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT):
        process = launch(folder, "run", "tiny.py", *LONGER)
        wait_for(process, folder, 1)
        err = kill(process, number)
        assert process.returncode == 130
        assert "run the same command again" in err
    assert 0 < len(rows(folder)) < RUNS
    finish(launch, folder)
    same_results(folder, reference)


@pytest.mark.slow
def test_two_commands_at_once_share_the_work(launch, reference, tmp_path):
    folder = study_folder(tmp_path)
    processes = [launch(folder, "run", "tiny.py", *LONGER) for _ in range(2)]
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert "Traceback" not in out + err
    same_results(folder, reference)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [1.5, 2.5, 3.5])
def test_stopped_before_anything_is_trained_leaves_a_folder_to_run_again(launch, reference, tmp_path, number, seconds):
    folder = study_folder(tmp_path)
    process = launch(folder, "run", "tiny.py", *LONGER)
    time.sleep(seconds)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (130, -number)
    finish(launch, folder)
    same_results(folder, reference)


@pytest.mark.long
def test_a_complete_study_is_not_trained_again(launch, short):
    groups = short / "runs" / "tiny" / "groups"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in groups.iterdir()}
    results = table(short)
    assert "0 runs" in finish(launch, short, words=())
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in groups.iterdir()} == before
    assert table(short).equals(results)


@pytest.mark.long
def test_the_report_needs_the_folder_alone(launch, short, tmp_path):
    moved = shutil.copytree(short / "runs" / "tiny", tmp_path / "elsewhere")
    made = ["results.parquet", "report.html", "figures"]
    shutil.rmtree(moved / "figures")
    (moved / "results.parquet").unlink()
    (moved / "report.html").unlink()
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    for place in (tmp_path, moved):
        (place / "tiny.py").write_text(trap)
    process = launch(tmp_path, "report", "elsewhere")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "Does it run?" in out
    assert not (tmp_path / "imported").exists()
    assert all((moved / name).exists() for name in made)
    assert pl.read_parquet(moved / "results.parquet").equals(table(short))
