"""Memory of large models on accelerators, by compilers for devices that need not be there."""

import importlib.util
import sys
from pathlib import Path

import pytest

from flaxformer.targets.topology import PACKAGES, parse_target

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
try:
    from memory import PROGRAMS, measure_in_a_process
finally:
    sys.path.pop(0)

LIMITS = {
    "124M, 32 × 1,024, one H200": 105.0,
    "124M, 32 × 1,024, one H200, rounded logits": 105.0,
    "124M, 16 × 1,024, one v5e": 15.75,
    "124M, 16 × 1,024, one v5e, remat block": 15.75,
    "XL, 16 × 1,024, 8 × v5e": 15.75,
    "XL, 64 × 1,024, 8 × H200": 105.0,
    "7B, 32 × 4,096, 32 × v5p": 95.0,
    "7B, 8 × 4,096, 8 × H200": 105.0,
    "70B, 64 × 4,096, 256 × v5p": 95.0,
}
"""GiB of a device."""
MOST_TEMPORARIES = {"124M, 32 × 1,024, one H200": 14.0, "124M, 32 × 1,024, one H200, rounded logits": 12.0}
"""GiB beside the state: a target of this package; that of rounded logits was set after 9.95 were measured."""


def test_every_program_has_a_limit():
    assert set(LIMITS) == set(PROGRAMS)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_a_step_fits_the_device(name):
    target = parse_target(PROGRAMS[name]["target"])
    if importlib.util.find_spec(PACKAGES[target.device.platform][0]) is None:
        pytest.skip(f"no compiler for {target}")
    found = measure_in_a_process(name)
    assert found["needed"] <= min(LIMITS[name], found["available"])
    assert found["temporaries"] <= MOST_TEMPORARIES.get(name, found["available"])
    assert found["kernel"] == {"tpu": "splash", "gpu": "cudnn"}[target.device.platform]
