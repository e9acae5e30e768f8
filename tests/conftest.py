"""Shared by all tests: two CPU devices, no silent rank promotion, and shapes checked at run time in the mathematics.

Most tests compile a program to run it once, and so compile it with little optimisation; those of `training` and
`study`, whose laws are about bits, are compiled as a user's programs are.
"""

import itertools
import os
import signal
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "2")))
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a background job so, and processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

OPTIMISED = {"training", "study"}
compiled_with: dict[str, bool] = {}


@pytest.fixture(autouse=True, scope="module")
def compiled_as_it_is_used(request):
    """How much XLA optimises, by the folder of the test; what was compiled otherwise is forgotten."""
    little = request.path.parent.name not in OPTIMISED
    if little != compiled_with.get("little"):
        compiled_with["little"] = little
        jax.config.update("jax_disable_most_optimizations", little)
        jax.clear_caches()


MAPS = Path("/proc/self/maps")
MOST_MAPS = 35_000
"""Of the 65,530 memory maps that Linux allows a process; past them, XLA crashes in its next compilation."""
tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def compiled_programs_are_few():
    """Forget compiled programs, which hold several memory maps each, before there are too many."""
    yield
    if next(tests_run) % 20 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
