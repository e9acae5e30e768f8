"""Two processes over loopback train one run: the same numbers, one folder, one word when they are to stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.config import FORMAT
from flaxformer.devices import distributed
from flaxformer.store.job_log import read
from flaxformer.system.digests import read_document, write_document
from flaxformer.system.errors import UserError

FILE = """
from flaxformer import ModelConfig, Attention, Dense
from flaxformer.tasks import StandardLibrary
from flaxformer.training import Run, Training

run = Run(
    model=ModelConfig(layers=2, d_model=16, attention=Attention(heads=4), feed_forward=Dense(d_ff=32), dropout=0.1),
    task=StandardLibrary(length=8, batch_size=8, evaluation_batches=2),
    training=Training(steps=STEPS, evaluate_every=4),
)
"""
MIXTURE = (
    FILE.replace("import StandardLibrary", "import Domain, Mixture, MixtureStage, StandardLibrary")
    .replace("run = Run(", "text = StandardLibrary(length=8)\nrun = Run(")
    .replace(
        "StandardLibrary(length=8, batch_size=8,",
        """Mixture(
        domains=(Domain(name="a", task=text, weight=0.7), Domain(name="b", task=text, weight=0.3)),
        stages=(MixtureStage(start=3, weights=(0.2, 0.8)),),
        batch_size=8,""",
    )
)
"""The same run on a mixture of two domains, whose batches differ since random keys depend on the names."""
TWO = ["--coordinator", "127.0.0.1:{port}", "--processes", "2", "--process", "{process}"]


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def launch(tmp_path, name, processes, *options, steps=8, devices=1, text=FILE):
    """The processes of a job, each with so many devices."""
    file = tmp_path / f"{name}.py"
    file.write_text(text.replace("STEPS", str(steps)))
    port, words = (
        free_port(),
        [sys.executable, "-m", "flaxformer.cli", "train", str(file), "--chunk-steps", "2", *options],
    )
    words += ["--samples", "8"]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
    }
    launched = []
    for process in range(processes):
        own = [word.format(port=port, process=process) for word in TWO] if processes > 1 else []
        running = subprocess.Popen(
            [*words, *own, "--output", str(tmp_path / f"{name}-{process}" if processes > 1 else tmp_path / name)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        launched.append(running)
    return launched


def ended(processes, code=0):
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), said
    return ["\n".join(line for line in text.splitlines() if not line.startswith("[Gloo]")) for text in said]


def numbers(folder):
    lines = read(folder / "log.jsonl")
    losses = [loss for line in lines if line["kind"] == "steps" for loss in line["loss"]]
    return losses, [line["validation_loss"] for line in lines if line["kind"] == "evaluation"]


def evaluations(folder):
    return [line for line in read(folder / "log.jsonl") if line["kind"] == "evaluation"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The numbers of the job in one process."""
    folder = tmp_path_factory.mktemp("alone")
    ended(launch(folder, "one", 1))
    return numbers(folder / "one")


@pytest.mark.parametrize(
    "mesh", [pytest.param("data=2", marks=pytest.mark.slow), pytest.param("tensor=2", marks=pytest.mark.exhaustive)]
)
def test_two_processes_train_what_one_does(tmp_path, alone, mesh):
    first, second = ended(launch(tmp_path, "two", 2, "--mesh", mesh))
    found, wanted = numbers(tmp_path / "two-0"), alone
    assert len(found[0]) == 8
    np.testing.assert_allclose(found[0], wanted[0], rtol=2e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=2e-5)
    assert "validation loss" in first
    assert second == ""
    assert not (tmp_path / "two-1").exists()
    assert Checkpoints(tmp_path / "two-0").steps() == [4, 8]
    ended(launch(tmp_path, "two", 2, "--mesh", mesh))  # finished: both verify the checkpoint, and train nothing
    assert numbers(tmp_path / "two-0") == found


@pytest.mark.slow
def test_two_processes_train_on_a_mixture_what_one_does(tmp_path):
    ended(launch(tmp_path, "one", 1, text=MIXTURE))
    ended(launch(tmp_path, "two", 2, "--mesh", "data=2", text=MIXTURE))
    found, wanted = numbers(tmp_path / "two-0"), numbers(tmp_path / "one")
    assert len(found[0]) == 8
    np.testing.assert_allclose(found[0], wanted[0], rtol=2e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=2e-5)
    names = ("a_loss", "b_loss")
    for one, other in zip(*(evaluations(tmp_path / name) for name in ("two-0", "one")), strict=True):
        np.testing.assert_allclose([one[name] for name in names], [other[name] for name in names], rtol=2e-5)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_another_mesh_resumes_the_job(tmp_path):
    processes = launch(tmp_path, "two", 2, "--mesh", "fsdp=2", steps=4000)
    while not (log := tmp_path / "two-0" / "log.jsonl").exists() or len(read(log)) < 3:
        assert processes[0].poll() is None, processes[0].communicate()[0]
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGUSR1)
    first, _ = ended(processes, 130)
    assert "Incomplete" in first
    stopped = Checkpoints(tmp_path / "two-0").steps()[-1]
    assert stopped % 2 == 0
    last = stopped + 4 + -stopped % 4
    config = tmp_path / "two-0" / "config.json"
    write_document(config, json.loads(json.dumps(read_document(config)).replace("4000", str(last))))
    (again,) = ended(launch(tmp_path, "two-0", 1, steps=last))
    assert f"resuming after step {stopped:,}" in again
    assert [line["step"] for line in read(log) if line["kind"] == "steps"][-1] == last


@pytest.mark.slow
def test_an_error_of_the_first_process_ends_all(tmp_path):
    (tmp_path / "two-0").mkdir()
    write_document(tmp_path / "two-0" / "config.json", {"format": FORMAT, "run": {"type": "Run"}})
    processes = launch(tmp_path, "two", 2, "--mesh", "data=2")
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], said
    assert "holds another run" in said[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("here", 2, 0), "coordinator is 'here'; expected HOST:PORT, or auto"),
        (("127.0.0.1:80", 2, None), "process None; expected the number of processes, and the number of this one"),
        (("127.0.0.1:80", 2, 2), "process 2; expected the number of processes, and the number of this one"),
        ((None, 2, 0), "processes is 2 and process 0 without a coordinator; expected HOST:PORT"),
    ],
)
def test_a_malformed_coordinator_is_refused_before_waiting(given, message):
    with pytest.raises(UserError, match=message):
        distributed.initialize(*given)
