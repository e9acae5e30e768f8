"""Output folders, weights and data on a server of S3: commands that are killed, and go on elsewhere."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs.small import FILE as JOB
from jobs.small import TEXT
from store.s3_server import BUCKET, needs_server, server
from study.tiny import FILE, results

import flaxformer
from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.steps import leaf_digests
from flaxformer.cli import main
from flaxformer.store import remote, revisions
from flaxformer.store.store import Store
from flaxformer.system import objects, remote_data
from flaxformer.system.errors import UserError

pytestmark = [needs_server, pytest.mark.long]
URL = f"{BUCKET}/runs/tiny"
PROGRAM = """
import os, signal, sys
from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.steps import leaf_digests
from flaxformer.cli import main
from flaxformer.store import remote, revisions
from flaxformer.store.mirror import Mirror
from flaxformer.system import objects

at, kinds = int(sys.argv[1]), {"upload", "create", "delete"}
sys.argv[1:2] = []
remote.PERIOD, calls = 0.05, []

def counted(name, function):
    def call(*arguments):
        calls.append(name)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call

for name in kinds:
    setattr(objects, name, counted(name, getattr(objects, name)))
code = main()
print("CALLS", len(calls), flush=True)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def environment():
    with server() as variables:
        yield variables


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch, environment):
    """A bucket that is empty, and a machine without copies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(remote_data.VARIABLE, str(tmp_path / "cache"))
    remote_data.download_data.cache_clear()
    objects.delete([f"{BUCKET}/{name}" for name in objects.find(BUCKET)])
    Path("tiny.py").write_text(FILE)


def run(environment, machine, at=0, *words):
    """Run a command as on a machine; it is killed at the call with a number."""
    words = words or ("run", "tiny.py", "--output", URL)
    variables = environment | {remote_data.VARIABLE: str(Path(machine).absolute())}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(at), *words], env=variables, capture_output=True, text=True, check=False
    )


def rows(url=URL):
    return results(Store(remote.read_copy(url)).rows())


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
    """Rows of the study as it runs in a local folder, and the number of calls that store it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run(environment, "machine", 0, "run", "tiny.py", "--output", "local")
        assert done.returncode == 0, done.stderr
        stored = run(environment, "machine", 0, "run", "tiny.py", "--output", f"{BUCKET}/runs/counted")
        assert stored.returncode == 0, stored.stderr
    return results(Store(folder / "local").rows()), int(re.search(r"CALLS (\d+)", stored.stdout)[1])


@pytest.mark.parametrize("part", [0.5, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.1, 0.3, 0.7, 0.9))])
def test_a_run_that_is_killed_goes_on_elsewhere_with_the_same_bits(environment, whole, part):
    expected, calls = whole
    at = max(2, int(calls * part))
    killed = run(environment, "one", at)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    before = rows()
    assert before.items() <= expected.items()
    done = run(environment, "two")
    assert done.returncode == 0, done.stderr
    assert rows() == expected
    assert not revisions.newest(URL).owner
    assert main(["report", URL]) == 0


def test_a_run_that_is_killed_goes_on_here_with_what_was_not_stored(environment, whole):
    expected, calls = whole
    assert run(environment, "one", calls // 2).returncode == -signal.SIGKILL
    here = results(Store(next(Path("one/written").iterdir()) / "copy/tiny").rows())
    assert rows().keys() <= here.keys()
    done = run(environment, "one")
    assert done.returncode == 0, done.stderr
    trained = len(expected) - len(here)
    assert f"tiny: {trained} run{'s' * (trained != 1)} to train" in done.stdout if trained else "0 runs" in done.stdout
    assert rows() == expected


def test_commands_read_and_write_a_remote_study(environment, whole, capsys):
    assert main(["run", "tiny.py", "--output", URL, "--keep", "final"]) == 0
    objects_before = objects.find(URL)
    capsys.readouterr()
    assert main(["status", URL, "--json"]) == 0
    assert sum(group["done"] for group in json.loads(capsys.readouterr().out)["groups"]) == 12
    assert objects.find(URL) == objects_before  # a reader changes nothing
    Path("measure.py").write_text("def measure(params, run):\n    return {'layers': run.model.layers}\n")
    assert main(["measure", URL, "measure.py", "--trust-code"]) == 0
    assert main(["verify", URL, "--trust-code", "--trials", "1"]) == 0
    assert main(["compare", URL, URL]) == 0
    assert (remote.read_copy(URL) / "trial_measurements.jsonl").exists()
    log = (remote.read_copy(URL) / "declarations.jsonl").read_text()
    assert '"verification"' in log
    assert flaxformer.results(URL).table.height == 12
    assert flaxformer.load(URL, {"norm": "pre", "rate": "low"}, seed=1).config.layers == 1


def test_a_job_that_is_killed_goes_on_elsewhere_with_the_same_bits(environment):
    Path("job.py").write_text(JOB)
    Path("text.txt").write_text(TEXT)
    words = ("train", "job.py", "--output")
    assert run(environment, "zero", 0, *words, "local").returncode == 0
    stored = run(environment, "zero", 0, *words, f"{BUCKET}/runs/counted")
    assert stored.returncode == 0, stored.stderr
    calls, job = int(re.search(r"CALLS (\d+)", stored.stdout)[1]), f"{BUCKET}/runs/job"
    assert run(environment, "one", calls // 2, *words, job).returncode == -signal.SIGKILL
    done = run(environment, "two", 0, *words, job)
    assert done.returncode == 0, done.stderr
    folder = remote.read_copy(job)
    last = max(Checkpoints("local").steps())
    assert Checkpoints(folder).steps()[-1] == last
    assert leaf_digests(folder, last) == leaf_digests(Path("local"), last)
    assert main(["generate", job, "--tokens", "3"]) == 0


def test_python_runs_a_study_in_a_bucket(environment, whole):
    found = flaxformer.run("tiny.py", URL, progress=False)
    assert found.table.height == 12
    assert rows() == whole[0]


def test_a_second_command_is_refused_while_the_first_writes(capsys, monkeypatch):
    with remote.writing(URL) as folder:
        (folder / "x").write_text("x")
        monkeypatch.setenv(remote_data.VARIABLE, "another machine")
        revision = revisions.newest(URL)
        monkeypatch.setattr(revisions, "EXPIRY", 10**6)
        monkeypatch.setattr(remote, "PERIOD", 0.1)
        assert revision.pid == os.getpid()
        with pytest.raises(UserError, match="is being written by process"), remote.writing(URL, is_patient=False):
            raise AssertionError
        with remote.showing(URL) as shown:
            assert shown.parents[2].name == "read"
    assert (remote.read_copy(URL) / "x").read_text() == "x"


@pytest.mark.parametrize("words", [["--share", "1/2"], ["--launcher", "slurm"], ["--launcher", "ray"]])
def test_workers_of_several_machines_are_refused(words, capsys):
    assert main(["run", "tiny.py", "--output", URL, *words]) == 2
    assert "which one process at a time writes; expected --launcher local" in " ".join(capsys.readouterr().err.split())
    assert objects.find(BUCKET) == {}


def test_workers_of_this_machine_share_the_copy(environment, whole):
    done = run(environment, "one", 0, "run", "tiny.py", "--output", URL, "--launcher", "local", "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows() == whole[0]


def test_mistakes_are_one_message(capsys, monkeypatch):
    assert main(["status", f"{BUCKET}/none"]) == 2
    assert f"{BUCKET}/none holds no results" in capsys.readouterr().err
    assert main(["status", "s3://no-such-bucket/x"]) == 2
    assert "there is no bucket s3://no-such-bucket" in " ".join(capsys.readouterr().err.split())
    assert main(["fit", f"{BUCKET}/points.csv"]) == 2
    assert "expected a path of this machine" in capsys.readouterr().err
