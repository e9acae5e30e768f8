"""Worker processes on this machine: the results do not depend on which worker trains which trial, or dies."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runner.loopback import wait
from study.tiny import FILE, results

from flaxformer.store.store import Store

pytestmark = pytest.mark.slow
LONG = ["--seeds", "2", "training.steps=15000", "training.evaluate_every=5000"]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start the command in a folder, on the tiny study."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))

    started = []

    def call(folder, *words):
        (folder / "tiny.py").write_text(FILE)
        process = subprocess.Popen(
            [sys.executable, "-m", "flaxformer.cli", "run", "tiny.py", "--devices", "1", *words],
            env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield call
    for process in started:  # of a test that failed: its workers end with their pipes
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    process = start(folder, *LONG)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return results(Store(folder / "runs" / "tiny").rows())


def workers(store):
    """The worker processes of a folder, in the order of their start."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if words[1:4] == ["-m", "flaxformer.cli", "run"] and "--share" in words and str(store.root) in words:
                pids.append(int(path.parent.name))
    return sorted(pids)


def under_way(process, store):
    wait(lambda: process.poll() is not None or store.rows(), 200)
    assert process.poll() is None, process.communicate()[0]
    return workers(store)


def test_two_workers_equal_one_process(tmp_path, start, uninterrupted):
    process = start(tmp_path, "--launcher", "local", *LONG)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert results(Store(tmp_path / "runs" / "tiny").rows()) == uninterrupted
    assert "worker 0: 4 runs in" in said
    assert "worker 1: 4 runs in" in said


def test_runs_of_a_killed_worker_are_taken_over(tmp_path, start, uninterrupted):
    process, store = start(tmp_path, "--launcher", "local", *LONG), Store(tmp_path / "runs" / "tiny")
    os.kill(under_way(process, store)[1], signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "worker 1 was killed by SIGKILL; its runs are kept" in said
    assert results(store.rows()) == uninterrupted


def test_stopped_command_stops_workers_and_resumes(tmp_path, start, uninterrupted):
    process, store = start(tmp_path, "--launcher", "local", *LONG), Store(tmp_path / "runs" / "tiny")
    assert len(under_way(process, store)) == 2
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert not workers(store)
    assert not list(store.root.glob("leases/*.lease"))
    assert len(store.rows()) < 8
    process = start(tmp_path, "--launcher", "local", "--workers", "1", *LONG)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert results(store.rows()) == uninterrupted
