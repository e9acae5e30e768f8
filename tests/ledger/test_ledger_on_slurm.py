"""Attempts by the tasks of a SLURM job: requeued, cancelled or killed, they come to the bits of one process."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runner.loopback import cluster, wait, why_not

from flaxformer.ledger import log
from flaxformer.ledger.reading import read_ledger
from flaxformer.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no SLURM of our own: {why_not()}"),
]
FILE = """
from ledger.ledgers import START, ledger as small
from flaxformer import Training

ledger = small(start=START.replace(training=Training(steps=2000, evaluate_every=1000)), together=2)
"""
WORDS = ["improve", "tiny.py", "optimizer.learning_rate=0.0003", "--reason", "the rate is low"]


@pytest.fixture(scope="module")
def slurm():
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def environment(slurm, tmp_path_factory):
    compiled = tmp_path_factory.mktemp("compiled")
    paths = os.pathsep.join([os.getcwd(), str(Path(__file__).parents[1])])
    extra = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": paths}
    return slurm.environment | extra | {"JAX_COMPILATION_CACHE_DIR": str(compiled)}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, environment):
    """The decision and the rows of one process."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "tiny.py").write_text(FILE)
    subprocess.run([sys.executable, "-m", "flaxformer.cli", *WORDS], cwd=folder, env=environment, check=True)
    return outcome(folder)


@pytest.fixture
def job(tmp_path, slurm, environment):
    """Submit a job of two tasks on one node, and return the function that submits it."""
    (tmp_path / "tiny.py").write_text(FILE)
    command = shlex.join([sys.executable, "-m", "flaxformer.cli", *WORDS])
    (tmp_path / "task.sh").write_text(f'exec {command} --share "$((SLURM_PROCID + 1))/$SLURM_NTASKS"\n')

    def submit():
        options = ["--parsable", "--requeue", "--ntasks=2", "--nodes=1", "--open-mode=append", "--output=job.out"]
        done = subprocess.run(
            ["sbatch", *options],
            input="#!/bin/bash\nsrun bash task.sh\n",
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    yield tmp_path, submit
    slurm.command("scancel", "--user=root")
    wait(lambda: not slurm.jobs(), 60)


def outcome(folder):
    """Verdict, digest of the scores, and the bits of every row that ended."""
    root = folder / "runs" / "tiny"
    results = read_ledger(root)
    assert results.faults == []
    [decision] = [entry for entry in results.entries if isinstance(entry, log.Decision)]
    rows = Store(root / "attempts" / "001").rows()
    scores = {name: row["train_loss_curve"] for name, row in rows.items()}
    return decision.verdict, decision.pairs, decision.results, scores


def said(folder):
    return (folder / "job.out").read_text() if (folder / "job.out").is_file() else ""


def under_way(folder, slurm):
    """Wait until a run has ended, and not all of them."""
    store = Store(folder / "runs" / "tiny" / "attempts" / "001")
    wait(lambda: (store.root / "study.json").is_file() and store.rows(), 200)
    assert slurm.jobs(), said(folder)
    assert not any(isinstance(entry, log.Decision) for entry in log.read(folder / "runs" / "tiny")[0])


def ended(slurm, seconds=300):
    wait(lambda: not slurm.jobs(), seconds, 0.5)


def test_tasks_of_one_job_share_an_attempt(job, slurm, one_process):
    folder, submit = job
    submit()
    ended(slurm)
    assert outcome(folder) == one_process, said(folder)
    trained = [int(count) for count in re.findall(r"(\d+) runs? in ", said(folder))]
    assert (len(trained), sum(trained)) == (2, len(one_process[-1])), said(folder)
    assert min(trained) > 0


def test_requeued_job_goes_on_with_its_attempt(job, slurm, one_process):
    folder, submit = job
    number = submit()
    under_way(folder, slurm)
    slurm.command("scontrol", "requeue", number)
    wait(lambda: slurm.jobs().get(number, ("",))[0] != "RUNNING", 60)
    ended(slurm)
    assert outcome(folder) == one_process, said(folder)


@pytest.mark.parametrize("kill", ["all tasks", "one task"])
def test_killed_tasks_lose_nothing(job, slurm, one_process, kill):
    folder, submit = job
    submit()
    under_way(folder, slurm)
    tasks = [pid for pid in slurm.running() if b"flaxformer.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    tasks = [pid for pid in tasks if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(sys.executable.encode())]
    assert len(tasks) == 2
    for pid in tasks if kill == "all tasks" else tasks[:1]:
        os.kill(pid, signal.SIGKILL)
    ended(slurm)
    if kill == "all tasks":
        submit()
        ended(slurm)
    assert outcome(folder) == one_process, said(folder)


def test_cancelled_job_is_taken_up_by_the_next(job, slurm, one_process):
    folder, submit = job
    number = submit()
    under_way(folder, slurm)
    slurm.command("scancel", number)
    ended(slurm, 60)
    submit()
    ended(slurm)
    assert outcome(folder) == one_process, said(folder)
