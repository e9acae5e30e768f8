"""JAX devices on a CPU, and the threads that run them."""

import contextlib
import os
import re

import jax

THREADS = "PJRT_NPROC"
"""Environment variable with the number of threads of XLA's CPU client, which is read when JAX starts."""
_FORCED = re.compile(r"xla_force_host_platform_device_count=(\d+)")


def cpu_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_cpu_device_per_core() -> None:
    """Let JAX use each core of the CPU as a device: a small model keeps only one core busy.

    A number that JAX_NUM_CPU_DEVICES, XLA_FLAGS or `jax.config` has set stays, as do the devices once JAX has started.
    """
    is_configured = jax.config.values["jax_num_cpu_devices"] > 0
    if not is_configured and not _FORCED.search(os.environ.get("XLA_FLAGS", "")):
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", cpu_cores())
    two_threads_per_cpu_device()


def two_threads_per_cpu_device() -> None:
    """Give XLA's CPU client two threads per device where there are several; it has no effect after JAX has started.

    By default it has one thread per core, or per device if there are more. Each device then holds up to 32 calls, and
    with as many threads as devices, all threads can wait in all-reduces of different calls, for each other: the
    process hangs, and XLA ends it after 40 s. A number that the environment sets already stays.
    """
    forced = _FORCED.search(os.environ.get("XLA_FLAGS", ""))
    devices = max(jax.config.values["jax_num_cpu_devices"], int(forced.group(1)) if forced else 1)
    if devices > 1:
        os.environ.setdefault(THREADS, str(2 * devices))
