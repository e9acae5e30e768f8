"""Settings of all tests: two CPU devices, no implicit rank promotion, shapes of `flaxformer.nn` checked at run time.

Most tests compile a program to run it once, so it is compiled with little optimisation. Those in `OPTIMISED`, which
compare bits between programs or test the compiler's numbers, are compiled like those of a user, except for
`FOR_SMALL_PROGRAMS`, which XLA reads once per process: `.ci/slow` runs them without these too.
"""

import gc
import importlib.metadata
import importlib.util
import itertools
import os
import signal
import time

FOR_SMALL_PROGRAMS = ["--xla_cpu_parallel_codegen_split_count=1"]
"""Options of XLA with which small programs compile in half the time; workers and other processes inherit them."""
JAXLIB = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
if JAXLIB < (0, 11) and importlib.util.find_spec("libtpu") is None:  # a later compiler ends the process at this option
    FOR_SMALL_PROGRAMS.append("--xla_cpu_use_fusion_emitters=false")
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(FOR_SMALL_PROGRAMS)

import jax
import jax.monitoring
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "2")))
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "dot_product", "heads", "kernels.packed", "kernels.products"]
CHECKED += ["linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a background job so, and processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.set_threshold(100_000, 50, 100)  # traces are many objects, which the garbage collector reads again and again


def pytest_collection_finish():
    """Take what stays until the end, such as modules and tests, out of the garbage collector's work."""
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Leave accelerators alone when programs are compiled for them; without a driver, CUDA cannot be asked at all."""
    selected = config.option.markexpr
    if "compile" in selected and "not compile" not in selected:
        jax.config.update("jax_platforms", "cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark all cases of a test as slow, except every n-th, where the test has the mark `every(n)`.

    The other cases of `every(n, "long")` are marked as long: of those that are left by an `every(n)`, if it has both.
    """
    counts: dict[tuple[str, str], itertools.count] = {}
    for item in items:
        rules = {args[1] if args[1:] else "slow": args[0] for args in (m.args for m in item.iter_markers("every"))}
        for mark in ("slow", "long"):
            if mark in rules and not item.get_closest_marker("slow"):
                position = next(counts.setdefault((item.nodeid.partition("[")[0], mark), itertools.count()))
                if position % rules[mark]:
                    item.add_marker(getattr(pytest.mark, mark))


START = time.monotonic()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="skip the tests that are left after so many minutes")


def pytest_runtest_setup(item):
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - START > 60 * minutes:
        pytest.skip(f"--minutes {minutes:g} have passed")


OPTIMISED = {
    "runner/test_run_alone.py",
    "targets",
    "training/test_compiled_run.py",
    "training/test_memory_targets.py",
}
"""Folders and files of tests whose programs are compiled like those of a user."""
compiled_with: dict[str, bool] = {}


@pytest.fixture(autouse=True, scope="module")
def compiled_as_it_is_used(request):
    """Set how much XLA optimises by the file of the test, and forget what was compiled otherwise."""
    folder = request.path.parent.name
    little = not {folder, f"{folder}/{request.path.name}"} & OPTIMISED
    if little != compiled_with.get("little"):
        compiled_with["little"] = little
        jax.config.update("jax_disable_most_optimizations", little)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(little)  # for the processes that a test starts
        jax.clear_caches()


MOST_PROGRAMS = 600
"""Compiled programs that a worker keeps: each holds memory and several of the 65,530 memory maps of a process."""
programs = {"compiled": 0}


def count_compiled_programs(event, seconds, **about):
    programs["compiled"] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(count_compiled_programs)


@pytest.fixture(autouse=True)
def compiled_programs_are_few():
    """Forget compiled programs before there are too many."""
    yield
    if programs["compiled"] > MOST_PROGRAMS:
        programs["compiled"] = 0
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def broadcasting_as_in_a_users_program():
    """Implicit rank promotion, which the other tests refuse."""
    with jax.numpy_rank_promotion("allow"):
        yield
