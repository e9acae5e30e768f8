"""Memory of large models on accelerators, by compilers for devices that need not be there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "experiments" / "benchmarks"))
try:
    from memory import TPU
finally:
    sys.path.pop(0)

LIMITS = {
    "124M, 16 × 1,024, one v5e": 15.75,
    "124M, 16 × 1,024, one v5e, remat block": 15.75,
    "XL, 16 × 1,024, 8 × v5e": 15.75,
    "7B, 32 × 4,096, 32 × v5p": 95.0,
    "70B, 64 × 4,096, 256 × v5p": 95.0,
}
"""GiB of a device."""


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_a_step_fits_the_device(name):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    if importlib.util.find_spec("flaxformer.nn.kernels.splash") is None and "remat block" not in name:
        pytest.skip("there is no attention kernel for this target")
    command = [sys.executable, str(ROOT / "experiments" / "benchmarks" / "memory.py"), "--measure", name]
    environment = os.environ | TPU | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert "needs" not in found, f"needs {found.get('needs')} GiB"
    assert found["state"] + found["temporaries"] <= LIMITS[name]
