"""Ray tasks on a cluster of this machine give the results of one process, also if the process of a task is killed."""

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
pytest.importorskip("ray", reason="no Ray")


LONG = ["--seeds", "2", "training.steps=6000", "training.evaluate_every=3000"]
"""Steps of a run of several seconds, which can be interrupted."""


def begin(folder, *words):
    """Start the tiny study in a folder."""
    folder.mkdir()
    (folder / "tiny.py").write_text(FILE)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "flaxformer.cli", "run", "tiny.py", "--devices", "1", *words],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def end(process, folder):
    """Wait for its end; return the results and the output."""
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    return results(Store(folder / "runs" / "tiny").rows()), said


def command(folder, *words):
    return end(begin(folder, *words), folder)


def tasks_of(pid):
    """The processes of Ray's tasks that descend from a process."""
    parents, tasks = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().startswith(b"ray::_task"):
                tasks.append(int(path.name))
        except OSError:
            continue

    def descends(one):
        return one == pid or (one in parents and descends(parents[one]))

    return [task for task in tasks if descends(task)]


def test_ray_tasks_equal_one_process(tmp_path):
    found, said = command(tmp_path / "tasks", "--launcher", "ray", "--ray", "cpus=1")
    assert "task 0 has ended with exit code 0" in said
    assert "task 1 has ended with exit code 0" in said
    assert found == command(tmp_path / "alone")[0]
    assert len(found) == 12


def test_killed_task_is_run_again_and_changes_no_result(tmp_path):
    process = begin(tmp_path / "tasks", "--launcher", "ray", "--workers", "1", "--ray", "cpus=1", *LONG)
    store = Store(tmp_path / "tasks" / "runs" / "tiny")
    wait(lambda: process.poll() is not None or (tasks_of(process.pid) and store.rows()), 240)
    assert process.poll() is None, process.communicate()
    before = set(store.rows())
    [task] = tasks_of(process.pid)
    os.kill(task, signal.SIGKILL)
    found, said = end(process, tmp_path / "tasks")
    assert 0 < len(before) < len(found)
    assert "task 0 has ended with exit code 0" in said
    assert found == command(tmp_path / "alone", *LONG)[0]
    assert len((store.root / "launches.jsonl").read_text().splitlines()) == 2
