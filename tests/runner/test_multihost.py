"""Two processes over loopback train a study together: one folder, the numbers of one process, one end for both."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from study.tiny import FILE

from flaxformer.store.store import Store

TWO = ["--coordinator", "127.0.0.1:{port}", "--processes", "2", "--process", "{process}", "--output", "{process}"]
OVERRIDES = ["--seeds", "2"]


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Start one process or two, with a device each; of two, each gets a folder of its own."""
    folder, cache = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("compiled")
    (folder / "tiny.py").write_text(FILE)
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
    }

    def start(name, *options, processes=2):
        port, launched = free_port(), []
        for process in range(processes):
            words = [sys.executable, "-m", "flaxformer.cli", "run", "tiny.py", *OVERRIDES, *options]
            own = [word.format(port=port, process=folder / f"{name}-{process}") for word in TWO]
            own[own.index("--process") + 1] = str(process)
            running = subprocess.Popen(
                words + (own if processes > 1 else ["--output", str(folder / f"{name}-0")]),
                cwd=folder,
                env=environment | {"JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            launched.append(running)
        return launched, Store(folder / f"{name}-0"), folder / f"{name}-1"

    return start


def ended(processes, codes):
    said = [process.communicate(timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == codes, said
    return said


@pytest.fixture(scope="module")
def alone(launch):
    """The rows of one process."""
    processes, store, _ = launch("alone", processes=1)
    ended(processes, [0])
    return store.rows()


def alike(rows, wanted):
    assert set(rows) == set(wanted)
    for name, row in rows.items():
        assert row["status"] == "done", row
        np.testing.assert_allclose(row["train_loss_curve"], wanted[name]["train_loss_curve"], rtol=1e-4)
        np.testing.assert_allclose(row["validation_loss_curve"], wanted[name]["validation_loss_curve"], rtol=1e-4)


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_the_first_alone_writes(launch, alone):
    processes, store, other = launch("both")
    first, second = ended(processes, [0, 0])
    alike(store.rows(), alone)
    assert {row["device"] for row in store.rows().values()} == {"cpu:0 and 1 more"}
    assert "8 runs to train in 2 compiled programs on 1 × 2 devices" in first
    assert [line for line in second.splitlines() if not line.startswith("[Gloo]")] == []
    assert not other.exists()


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_ends_both_and_the_same_command_resumes(launch, alone, signalled):
    longer = ["training.steps=200", "training.evaluate_every=100"]
    processes, store, _ = launch(f"stopped{signalled}", *longer)
    while len(store.rows()) < 1:
        assert processes[0].poll() is None, processes[0].communicate()[0]
        time.sleep(0.1)
    processes[signalled].send_signal(signal.SIGTERM)
    said = ended(processes, [130, 130])
    assert all("run the same command again" in text for text in said)
    kept = store.rows()
    assert 1 <= len(kept) < len(alone)
    processes, store, _ = launch(f"stopped{signalled}", *longer)
    ended(processes, [0, 0])
    rows = store.rows()
    assert set(rows) == set(alone)
    assert {name: rows[name]["train_loss_curve"] for name in kept} == {
        name: kept[name]["train_loss_curve"] for name in kept
    }


@pytest.mark.slow
def test_an_error_of_the_first_process_ends_both(launch):
    processes, store, _ = launch("refused", "task.batch_size=3")
    said = ended(processes, [2, 2])
    assert all("task.batch_size is 3; expected a multiple of 2" in text for text in said)
    assert store.rows() == {}
