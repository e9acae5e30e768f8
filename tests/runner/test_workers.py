"""Processes that work on one folder and are killed, stopped, suspended, or run out of disk, whenever it may be."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store.test_store_faults import is_whole
from study import faults
from study.faults import TRIALS, results, train

from flaxformer.store.status import status
from flaxformer.store.store import Store, read_lines
from flaxformer.system.errors import UserError

pytestmark = pytest.mark.slow
WORKER = """
import signal, sys
from pathlib import Path
from study import faults
from flaxformer.runner import program, launch
from flaxformer.store import leases
launch.POLL, leases.HEARTBEAT, launch.provenance = 0.05, 0.3, faults.provenance
program.Program = type("Program", (faults.Program,), {"seconds": 0.25})
def stop(*_): raise KeyboardInterrupt
for number in (signal.SIGTERM, signal.SIGUSR2): signal.signal(number, stop)
try:
    faults.train(Path(sys.argv[1]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        faults.use(patch)
        root = tmp_path_factory.mktemp("whole")
        train(root)
    return root, results(root)


@pytest.fixture
def start():
    """Start a worker on a folder; those that are left at the end of a test are killed."""
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    started = []

    def call(root):
        command = [sys.executable, "-c", WORKER, str(root)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


def ended(process, code=0):
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err


def wait(root, more, *processes):
    """Wait until so many more rows are there, or nobody works any more."""
    wanted = len(Store(root).rows()) + more
    while len(Store(root).rows()) < wanted and any(process.poll() is None for process in processes):
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_of_either_of_two_workers_at_any_moment(whole, tmp_path, start, seed):
    chance = random.Random(seed)
    workers, kept = [start(tmp_path), start(tmp_path)], {}
    while len(kept) < len(TRIALS):
        wait(tmp_path, 1, *workers)
        time.sleep(chance.uniform(0, 0.3))
        one = chance.randrange(2)
        if workers[one].poll() is None and len(Store(tmp_path).rows()) < len(TRIALS) - 2:
            workers[one].kill()
            workers[one].communicate()
        workers = [start(tmp_path) if own.poll() is not None else own for own in workers]
        now = results(tmp_path)
        assert kept.items() <= now.items()
        kept = now
    for process in workers:
        ended(process)
    is_whole(tmp_path, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_worker_that_is_asked_to_stop_gives_its_leases_back(whole, tmp_path, start, number):
    process = start(tmp_path)
    wait(tmp_path, 1, process)
    process.send_signal(number)
    ended(process, 130)
    assert not list((tmp_path / "leases").glob("*.lease"))
    assert 0 < len(Store(tmp_path).rows()) < len(TRIALS)
    ended(start(tmp_path))
    is_whole(tmp_path, whole)


def test_a_suspended_worker_is_replaced_and_does_no_harm_when_it_continues(whole, tmp_path, start):
    first = start(tmp_path)
    wait(tmp_path, 1, first)
    first.send_signal(signal.SIGSTOP)
    assert {lease["state"] for lease in status(Store(tmp_path))["leases"]} == {"alive"}
    ended(start(tmp_path))
    assert results(tmp_path) == whole[1]
    first.send_signal(signal.SIGCONT)
    ended(first)
    is_whole(tmp_path, whole)
    assert len(read_lines(tmp_path / "launches.jsonl")) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root alone")
def test_a_disk_that_is_full_in_fact(whole, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs: {mounted.stderr.strip()}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            faults.use(patch)
            (disk / "ballast").write_bytes(bytes(32 * 1024))
            with pytest.raises(UserError, match="cannot be written: No space left on device"):
                train(disk / "study")
            (disk / "ballast").unlink()
            subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
            train(disk / "study")
            is_whole(disk / "study", whole)
    finally:
        subprocess.run(["umount", disk], check=True)
