"""Real SLURM with two nodes on this machine: whatever happens to the jobs, the results equal those of one process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runner.loopback import cluster, wait, why_not
from study.tiny import FILE, results

from flaxformer.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no SLURM of our own: {why_not()}"),
]
LONG = ["--seeds", "2", "training.steps=6000", "training.evaluate_every=3000"]
"""Steps of a run of several seconds, which can be interrupted."""


@pytest.fixture(scope="module")
def slurm():
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def command(slurm, tmp_path_factory):
    """Run the tiny study from the command line, in a folder; return its store and output."""
    compiled = tmp_path_factory.mktemp("compiled")
    environment = slurm.environment | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    environment |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}

    def call(folder, *words, file=FILE):
        (folder / "tiny.py").write_text(file)
        done = subprocess.run(
            [sys.executable, "-m", "flaxformer.cli", "run", "tiny.py", *words],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return Store(folder / "runs" / "tiny"), " ".join(done.stdout.split())

    return call


@pytest.fixture
def submit(tmp_path, slurm, command):
    """Submit the tiny study; return its store and the numbers of the jobs."""

    def call(*words, file=FILE):
        store, said = command(tmp_path, "--launcher", "slurm", *words, file=file)
        jobs = re.search(r"submitted (\d+) jobs? as (\d+);", said)
        assert jobs, said
        return store, [f"{jobs[2]}_{number}" for number in range(1, int(jobs[1]) + 1)]

    yield call
    slurm.command("scancel", "--user=root")
    wait(lambda: not slurm.jobs(), 60)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, command):
    """Return the results of the study, trained by the command in one process."""
    found = {}

    def call(*words):
        if words not in found:
            found[words] = results(command(tmp_path_factory.mktemp("whole"), *words)[0].rows())
        return found[words]

    return call


def logs(store):
    """Return the output of the jobs and of SLURM."""
    return "\n".join(path.read_text() for path in sorted(store.root.glob("launches/*.out")))


def under_way(store, job, slurm):
    """Wait until a job has a finished run, and not all of them."""
    wait(lambda: store.rows() or not slurm.jobs(), 180)
    assert slurm.jobs().get(job, ("",))[0] == "RUNNING", (slurm.jobs(), logs(store))


def ended(slurm, seconds=240):
    wait(lambda: not slurm.jobs(), seconds, 0.5)


def test_job_array_equals_one_process(submit, slurm, uninterrupted):
    store, jobs = submit()
    assert len(jobs) == 2
    ended(slurm)
    assert results(store.rows()) == uninterrupted(), logs(store)


def test_requeued_job_resumes(submit, slurm, uninterrupted):
    store, (job,) = submit("--workers", "1", *LONG)
    under_way(store, job, slurm)
    before = set(store.rows())
    slurm.command("scontrol", "requeue", job)
    wait(lambda: slurm.jobs().get(job, ("",))[0] != "RUNNING", 60)
    ended(slurm)
    assert results(store.rows()) == uninterrupted(*LONG), logs(store)
    assert before
    assert logs(store).count("Results in") == 2


@pytest.mark.parametrize("name", ["USR2", "TERM"])
def test_warned_job_is_requeued(submit, slurm, uninterrupted, name):
    store, (job,) = submit("--workers", "1", *LONG)
    under_way(store, job, slurm)
    slurm.command("scancel", f"--signal={name}", job)
    wait(lambda: slurm.jobs().get(job, ("",))[0] != "RUNNING", 60)
    ended(slurm)
    assert results(store.rows()) == uninterrupted(*LONG), logs(store)
    assert logs(store).count("Results in") == 2


def worker_of(slurm):
    """The process that trains a job."""
    words = [(pid, Path(f"/proc/{pid}/cmdline").read_text().split("\0")) for pid in slurm.running()]
    [pid] = [pid for pid, line in words if line[0] == sys.executable and "flaxformer.cli" in line]
    return pid


def test_job_whose_process_is_killed_resumes(submit, slurm, uninterrupted):
    store, (job,) = submit("--workers", "1", *LONG)
    under_way(store, job, slurm)
    before = set(store.rows())
    os.kill(worker_of(slurm), signal.SIGKILL)
    wait(lambda: "is queued again, 1 of 3 times" in logs(store), 60)
    ended(slurm)
    assert before
    assert results(store.rows()) == uninterrupted(*LONG), logs(store)
    assert logs(store).count("Results in") == 2


def test_job_that_always_dies_ends_with_failed_runs(submit, slurm):
    dying = "\nimport os\nif 'SLURM_JOB_ID' in os.environ:\n    os.kill(os.getpid(), 9)\n"
    store, _ = submit("--workers", "1", file=FILE + dying)
    ended(slurm)
    said = logs(store)
    assert said.count("it is queued again") == 2
    assert "ended by SIGKILL, which is how a machine without memory ends one, 3 times without progress" in said
    rows = store.rows()
    assert len(rows) == 12
    assert {row["status"] for row in rows.values()} == {"failed"}
    assert "--slurm mem=" in next(iter(rows.values()))["cause"]


def test_cancelled_job_is_not_requeued(submit, slurm):
    store, (job,) = submit("--workers", "1", *LONG)
    under_way(store, job, slurm)
    slurm.command("scancel", job)
    ended(slurm, 60)
    assert len(store.rows()) < 8
    assert not list(store.root.glob("leases/*.lease"))


@pytest.mark.exhaustive
def test_job_over_its_time_limit_resumes_until_done(submit, slurm, uninterrupted):
    # A minute is the shortest limit; SLURM may warn half a minute early, so that a start gets 20 s at least.
    longer = ["training.steps=40000", "training.evaluate_every=20000", "--seeds", "6"]
    store, _ = submit("--workers", "1", "--slurm", "time=1", "warning=10", *longer)
    wanted = uninterrupted(*longer)  # meanwhile
    ended(slurm, 600)
    assert results(store.rows()) == wanted, logs(store)
    assert logs(store).count("Results in") > 1


def test_job_of_a_lost_node_resumes_on_another(submit, slurm, uninterrupted, record_property):
    store, (job,) = submit("--workers", "1", *LONG)
    under_way(store, job, slurm)
    node = slurm.jobs()[job][1]
    before = len(store.rows())
    slurm.kill_node(node)
    try:
        took = wait(lambda: len(store.rows()) > before, 240)
        ended(slurm)
    finally:
        slurm.start_node(node)
        wait(lambda: slurm.command("sinfo", "-h", "-t", "idle", "-o", "%D").split() == ["2"], 60)
    record_property("seconds from a killed node to the next finished run", took)
    assert results(store.rows()) == uninterrupted(*LONG), logs(store)


def test_nodes_of_a_job_share_each_run(submit, slurm, uninterrupted):
    store, (job,) = submit("--workers", "1", "--slurm", "nodes=2")
    wait(lambda: slurm.jobs().get(job, ("",))[0] != "PENDING", 60)
    ended(slurm)
    found, wanted = store.rows(), uninterrupted()
    assert sorted(found) == sorted(wanted), logs(store)
    for trial, row in wanted.items():
        np.testing.assert_allclose(found[trial]["train_loss_curve"], row["train_loss_curve"], rtol=2e-5)
    assert len(store.root.joinpath("launches.jsonl").read_text().splitlines()) == 1
    assert all(row["device"].endswith(" and 1 more") for row in found.values())
