"""Settings of all tests: two CPU devices, no implicit rank promotion, shapes of `flaxformer.nn` checked at run time.

Most tests compile a program to run it once, so it is compiled with little optimisation. The programs of tests/training,
tests/study, tests/runner and tests/store, which compare bits, are compiled like those of a user.
"""

import ctypes
import gc
import itertools
import os
import signal
import time
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "2")))
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "dot_product", "heads", "kernels.packed", "kernels.products"]
CHECKED += ["linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a background job so, and processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Leave accelerators alone when programs are compiled for them; without a driver, CUDA cannot be asked at all."""
    selected = config.option.markexpr
    if "compile" in selected and "not compile" not in selected:
        jax.config.update("jax_platforms", "cpu")


START = time.monotonic()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="skip the tests that are left after so many minutes")


def pytest_runtest_setup(item):
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - START > 60 * minutes:
        pytest.skip(f"--minutes {minutes:g} have passed")


OPTIMISED = {"training", "study", "runner", "store", "targets"}
compiled_with: dict[str, bool] = {}


@pytest.fixture(autouse=True, scope="module")
def compiled_as_it_is_used(request):
    """Set how much XLA optimises by the folder of the test, and forget what was compiled otherwise."""
    little = request.path.parent.name not in OPTIMISED
    if little != compiled_with.get("little"):
        compiled_with["little"] = little
        jax.config.update("jax_disable_most_optimizations", little)
        jax.clear_caches()


MAPS, MEMORY = Path("/proc/self/maps"), Path("/proc/self/statm")
MOST_MAPS = 35_000
"""Of the 65,530 memory maps that Linux allows a process; past them, XLA crashes in its next compilation."""
MOST_BYTES = 2_000_000_000
"""Resident memory at which compiled programs are forgotten; without this, a worker takes 4 to 5 GB."""
MARGIN = 800_000_000
"""Least growth between two such times, so that a large live test does not compile everything anew for each test."""
tests_run = itertools.count(1)
limit = {"bytes": MOST_BYTES}


def resident_bytes():
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_compiled_programs():
    """Free compiled programs, and return the memory to the system, which the C library keeps otherwise."""
    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@pytest.fixture(autouse=True)
def compiled_programs_are_few():
    """Forget compiled programs, which hold memory and several memory maps each, before there are too many."""
    yield
    if not MAPS.exists():
        return
    full = resident_bytes() > limit["bytes"]
    if full or (next(tests_run) % 20 == 0 and MAPS.read_bytes().count(b"\n") > MOST_MAPS):
        forget_compiled_programs()
        limit["bytes"] = max(MOST_BYTES, resident_bytes() + MARGIN)
