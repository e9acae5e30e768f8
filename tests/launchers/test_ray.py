"""Ray tasks on a cluster of this machine give the results of one process."""

import os
import subprocess
import sys

import pytest
from study.tiny import FILE, results

from flaxformer.store.store import Store

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="no Ray")


def command(folder, *words):
    (folder / "tiny.py").write_text(FILE)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "flaxformer.cli", "run", "tiny.py", "--devices", "1", *words],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return results(Store(folder / "runs" / "tiny").rows()), done.stdout


def test_ray_tasks_equal_one_process(tmp_path):
    for name in ("tasks", "alone"):
        (tmp_path / name).mkdir()
    found, said = command(tmp_path / "tasks", "--launcher", "ray", "--ray", "cpus=1")
    assert "task 0 has ended; 0 of its runs failed" in said
    assert "task 1 has ended; 0 of its runs failed" in said
    assert found == command(tmp_path / "alone")[0]
    assert len(found) == 12
