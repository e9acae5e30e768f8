"""Checkpoints of a model that several processes hold: each writes and reads its shards, or nothing is published."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.steps import leaf_digests

pytestmark = pytest.mark.long

WRITERS = {
    "one": (1, 2, "fsdp=2", "unrolled"),
    "two": (2, 2, "fsdp=2,tensor=2", "scanned"),
    "four": (4, 1, "data=2,fsdp=2", "unrolled"),
}
"""Number of processes, devices of each, mesh, and layout of the layers."""
READERS = {
    "one": (1, 2, "tensor=2", "scanned"),
    "two": (2, 2, "data=2,fsdp=2", "unrolled"),
    "four": (4, 1, "fsdp=4", "scanned"),
}
DEFAULT = {("two", "one"), ("two", "two")}


def run_processes(how, folder, *words, codes=None):
    """Run the processes, and return for each the lines that it has printed."""
    count, devices, mesh, layout = how
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
    }
    environment.pop("XLA_FLAGS", None)
    running = [
        subprocess.Popen(
            [sys.executable, str(here / "process.py"), *map(str, (port, count, index, folder, mesh, layout, *words))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    outputs = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == (codes or [0] * count), outputs
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function that gives the folder with steps 3 and 4 of a writer, and what its processes said."""
    results = {}

    def write(writer):
        if writer not in results:
            folder = tmp_path_factory.mktemp(writer) / "run"
            results[writer] = folder, run_processes(WRITERS[writer], folder, "save", 3, 4)
        return results[writer]

    return write


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        pytest.param(writer, reader, marks=() if (writer, reader) in DEFAULT else pytest.mark.slow)
        for writer in WRITERS
        for reader in READERS
    ],
)
def test_any_number_of_processes_restores_on_any_mesh_bit_for_bit(written, writer, reader):
    folder, _ = written(writer)
    for lines in run_processes(READERS[reader], folder, "restore", 4):
        assert [(line["step"], line["equal"], line["placed"], line["said"]) for line in lines] == [(4, True, True, [])]


@pytest.mark.slow
def test_digests_do_not_depend_on_processes_mesh_and_layout(written):
    one, two, four = (leaf_digests(written(writer)[0], 4) for writer in WRITERS)
    assert one == two == four


def test_no_process_holds_the_model_whole(written):
    """With half of it on each process, and the largest array 6 % of it."""
    folder, saved = written("two")
    restored = run_processes(WRITERS["two"], folder, "restore", 4)
    assert all(line["said"] == [] for lines in saved for line in lines)
    for lines in saved + restored:
        for line in lines:
            assert 0.45 < line["alive"] < 0.65
            assert line["traced"] < 0.75


def test_each_process_writes_its_shards(written):
    folder, _ = written("two")
    sizes = [
        sum(path.stat().st_size for path in (folder / "4" / "state" / f"ocdbt.process_{index}").rglob("*"))
        for index in range(2)
    ]
    assert 0.8 < sizes[0] / sizes[1] < 1.25
    assert sorted(os.listdir(folder)) == ["3", "4"]


def test_damage_to_the_part_of_one_process_falls_back_in_all(written, tmp_path):
    folder = shutil.copytree(written("two")[0], tmp_path / "run")
    data = max((folder / "4" / "state" / "ocdbt.process_1").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    first, second = run_processes(READERS["two"], folder, "restore", 3)
    assert [(line["step"], line["equal"]) for line in first + second] == [(3, True)] * 2
    assert len(first[0]["said"]) == 1
    assert "has changed; it is now 4.corrupt" in first[0]["said"][0]
    assert second[0]["said"] == []


@pytest.mark.parametrize(
    ("fault", "codes", "messages"),
    [
        ("full", [0, 0], ["process 1 stopped: [Errno 28] No space left", "[Errno 28] No space left"]),
        ("kill", [3, -signal.SIGKILL], ["a process has ended, or did not finish its part within 20 s"]),
        ("unseen", [0, 0], ["process 1 stopped: it sees no folder", "it sees no folder"]),
    ],
)
def test_a_process_that_fails_leaves_nothing_published(tmp_path, fault, codes, messages):
    folder, how = tmp_path / "run", (2, 1, "fsdp=2", "scanned")
    printed = run_processes(how, folder, "save", 3, 4, "--fault", fault, codes=codes)
    for lines, message in zip(printed, messages, strict=False):
        assert message in lines[-1]["error"]
    published = [] if fault == "unseen" else [3]
    assert Checkpoints(folder).steps() == published
    again = run_processes(how, folder, "save", 5)
    assert all("error" not in lines[0] for lines in again)
    assert sorted(os.listdir(folder)) == sorted(map(str, [*published, 5]))
